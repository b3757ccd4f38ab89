// An architecture's own keys ("llama.block_count"): typed reads that note what is wrong, and the rule for
// keys that nobody read. Knows nothing of what the facts mean.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "gguf/gguf.h"

namespace sluice::model {

/// Reads "ARCHITECTURE.key" keys; names are given without the prefix.
class Keys {
 public:
  Keys(const gguf::File& file, std::string architecture, Problems& problems)
      : file_(file), prefix_(std::move(architecture) + "."), problems_(problems) {}

  bool has(const std::string& key) const { return file_.find(prefix_ + key) != nullptr; }

  /// An integer in [least, most]; `absent` when there is no such key.
  int64_t integer(const std::string& key, int64_t absent, int64_t least = 0, int64_t most = kMost);
  int64_t required(const std::string& key, int64_t least = 1, int64_t most = kMost);
  double number(const std::string& key, double absent);
  bool boolean(const std::string& key, bool absent);
  std::string string(const std::string& key, const std::string& absent);
  /// An array of `count` bools or integers; nullopt when there is no such key, or it is no array.
  std::optional<std::vector<bool>> flags(const std::string& key, size_t count);

  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add("{}{}", prefix_, fmt::format(format, std::forward<Args>(args)...));
  }

  /// Keys that are known and left unread: what they say is told by something else.
  void known(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }

  /// Refuses by name every key of the architecture that nobody read and that may change the arithmetic: all
  /// but texts, keys that only describe, and numbers that say what is done anyway (a logit_scale of 1).
  void refuse_unread();

 private:
  static constexpr int64_t kMost = 1 << 24;

  template <typename Result>
  Result read(Result (gguf::File::*reader)(std::string_view) const, const std::string& key);

  const gguf::File& file_;
  std::string prefix_;
  Problems& problems_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace sluice::model
