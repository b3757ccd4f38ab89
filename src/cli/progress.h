// How far long work has come, at a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sluice::cli {

/// A line on standard error that is drawn again and again and is gone at the end. Nothing where standard
/// error is no terminal.
class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { clear(); }

  /// Draws what `text` gives, unless it was drawn less than a tenth of a second ago.
  void show(const std::function<std::string()>& text);
  void clear();

 private:
  bool terminal_, drawn_ = false;
  int64_t next_ns_ = 0;
};

/// Hears how many of a prompt's tokens have been read and shows it, of prompts that take a while, until all
/// are.
std::function<void(int64_t done, int64_t total)> prompt_bar();

/// "reading the prompt  [#####     ]  50 %  4096 of 8192 tokens".
std::string bar_text(const std::string& what, int64_t done, int64_t total, const std::string& amount);

}  // namespace sluice::cli
