// Where the hub is, where its files are kept, and who asks: the variables that clients of the model hub
// share.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::hub {

struct Settings {
  std::string endpoint = "https://huggingface.co";  ///< without a slash at its end
  std::filesystem::path cache;                      ///< the folder of repositories
  std::string token;                                ///< empty: none
  std::string user_agent = "sluice";
  bool offline = false;  ///< no request is made
  /// A file of the certificates that are trusted. Empty: libcurl's own.
  std::string certificates;

  /// HF_ENDPOINT; HF_HUB_CACHE, or else HF_HOME/hub, or else ~/.cache/huggingface/hub; HF_TOKEN, or else the
  /// file at HF_TOKEN_PATH or HF_HOME/token; HF_HUB_OFFLINE; SSL_CERT_FILE, CURL_CA_BUNDLE or
  /// REQUESTS_CA_BUNDLE, or else the first file that is where a distribution keeps it. Throws UsageError that
  /// names a variable that makes no sense.
  static Settings from_environment();
};

}  // namespace sluice::hub
