#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "cli/output.h"
#include "cli/word_wrap.h"

namespace sluice::cli {
namespace {

constexpr int64_t kEveryNs = 100'000'000;
constexpr int64_t kLeastTokens = 256;  // fewer are read before anybody could read a bar

// A line that wraps cannot be drawn over: what a terminal of so many columns (0: not known) has room for.
std::string cut(std::string line, int columns) {
  auto end = static_cast<size_t>(std::max(columns - 1, 0));
  if (columns == 0 || line.size() <= end) return line;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;  // within a character
  line.resize(end);
  return line;
}

}  // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(const std::function<std::string()>& text) {
  if (!terminal_) return;
  const int64_t now = now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + kEveryNs;
  drawn_ = true;
  note("\r{}\x1b[K", cut(text(), terminal_columns(STDERR_FILENO)));
}

void ProgressLine::clear() {
  if (drawn_) note("\r\x1b[K");
  drawn_ = false;
}

std::function<void(int64_t done, int64_t total)> prompt_bar() {
  return [line = std::make_shared<ProgressLine>(), begun = false](int64_t done, int64_t total) mutable {
    if (done >= total) return line->clear();
    begun = begun || total - done >= kLeastTokens;
    if (!begun) return;
    line->show([&] {
      return bar_text("reading the prompt", done, total, fmt::format("{} of {} tokens", done, total));
    });
  };
}

std::string bar_text(const std::string& what, int64_t done, int64_t total, const std::string& amount) {
  constexpr int kCells = 10;  // in 80 columns there is room for what a pull tells behind them
  const double share = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
  const auto cells = static_cast<size_t>(share * kCells);
  return fmt::format("{}  [{:<{}}] {:3.0f} %  {}", what, std::string(cells, '#'), kCells, 100 * share,
                     amount);
}

}  // namespace sluice::cli
