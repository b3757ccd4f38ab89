// One file of a hub: fetched, gone on with after a cut, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/http.h"
#include "hub/names.h"

namespace sluice::hub {

/// What a download says while it runs.
struct Reports {
  /// Bytes of this file that are there now; fewer than before where it begins anew.
  std::function<void(int64_t)> bytes;
  /// A line for the user.
  std::function<void(const std::string&)> tell;
};

/// An answer that is no good one, as an Error about `subject`, which lies in the repository.
[[noreturn]] void fail_with(const Answer& answer, const Settings& settings, const Repository& repository,
                            const std::string& subject);

/// Whether an answer says to come again, and after how many seconds; -1: it does not.
double seconds_to_wait(const Answer& answer, int tries);

/// Writes the file's bytes behind those that `incomplete` holds already. Returns when all are there and their
/// hash is the one that was promised; bytes of an earlier run that prove wrong are fetched again. Throws
/// Error, and leaves what may be gone on with.
void download(Http& http, const Settings& settings, const Repository& repository, const std::string& url,
              const File& file, const std::filesystem::path& incomplete, const Reports& reports);

}  // namespace sluice::hub
