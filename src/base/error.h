// What the outside world did wrong: a file, a flag, a request. Our own bugs are CHECK's (check.h).
// Messages form a chain from the outside in: "glm.gguf: blk.3.attn_k_b.weight: shape [...], expected [...]".
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// Bad input. what() is one line, or a first line and one indented line a problem; no trailing newline.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

/// A command line that makes no sense: the program exits with 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Throws an Error made from a format string.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Everything that is wrong with one file, reported at once: "FILE: PROBLEM", or "FILE: 2 problems" and one
/// indented line each.
class Problems {
 public:
  static constexpr size_t kShown = 20;

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    ++count_;
    if (lines_.size() < kShown) lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }

  /// Throws an Error that lists the problems of `subject` (a file's name), at most kShown of them.
  void throw_if_any(const std::string& subject) const {
    if (empty()) return;
    if (count_ == 1) fail("{}: {}", subject, lines_.front());
    std::string message = fmt::format("{}: {} problems", subject, count_);
    for (const auto& line : lines_) message += "\n  " + line;
    if (count_ > lines_.size()) message += fmt::format("\n  and {} more", count_ - lines_.size());
    throw Error(message);
  }

 private:
  size_t count_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace sluice
