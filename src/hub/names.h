// What things of a hub are called, and which names are taken from a stranger: they become paths of files.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::hub {

struct Repository {
  std::string user, name;
  std::string text() const { return user + "/" + name; }
  auto operator<=>(const Repository&) const = default;

  /// Of USER/REPO. Throws UsageError for anything else.
  static Repository parse(std::string_view text);
};

/// USER/REPO[:QUANT], where QUANT is a number format (Q4_K_M) the name of a file (.gguf), or
/// "latest" for none.
struct ModelName {
  Repository repository;
  std::string quant;  ///< empty: by default
  std::string text() const { return repository.text() + (quant.empty() ? "" : ":" + quant); }
  /// Throws UsageError for anything else.
  static ModelName parse(std::string_view text);
};

/// A file of a repository at one revision.
struct File {
  std::string path;  ///< in the repository
  int64_t size = 0;
  std::string sha256;  ///< empty: it is a small file of text, which has another name of its content
};

struct Revision {
  std::string commit;
  std::vector<File> files;
};

/// A path below a folder, told by a stranger: no part of it is empty, . or .., none holds a backslash or a
/// control character, and there are not many of them.
bool is_safe_path(std::string_view path);
/// Hexadecimal digits, so many at least and 64 at most.
bool is_hex(std::string_view text, size_t least);

/// "17.20 GB".
std::string size_text(int64_t bytes);

}  // namespace sluice::hub
