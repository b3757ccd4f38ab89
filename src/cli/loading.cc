#include "cli/loading.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

constexpr int64_t kLeastBytes = 64 << 20;  // less is loaded before anybody could read a bar
constexpr int64_t kEveryNs = 100'000'000;

/// A bar that is drawn again and again in one line, and is gone at the end.
class LoadingBar {
 public:
  void show(int64_t done, int64_t total) {
    if (total < kLeastBytes) return;
    const int64_t now = now_ns();
    if (done == total) {
      fmt::print(stderr, "\r\x1b[K");
    } else if (now >= next_ns_) {
      next_ns_ = now + kEveryNs;
      fmt::print(stderr, "\r{}\x1b[K", loading_bar_text(done, total));
    }
    std::fflush(stderr);
  }

 private:
  int64_t next_ns_ = 0;
};

}  // namespace

void add_loading_option(CLI::App& command, bool& no_repack) {
  command.add_flag(
      "--no-repack", no_repack,
      "run from the file as it is mapped: ready at once and without a second copy of the weights "
      "in memory, but slower (backend cpu)");
}

quant::Type cache_type_of(const std::string& name) {
  if (name == "f16") return quant::Type::F16;
  if (name == "q8_0") return quant::Type::Q8_0;
  throw UsageError("--cache-type " + name + ": expected f16 or q8_0");
}

std::string cache_type_name(quant::Type type) { return type == quant::Type::Q8_0 ? "q8_0" : "f16"; }

void add_cache_option(CLI::App& command, quant::Type& type) {
  command
      .add_option_function<std::string>(
          "--cache-type,--ctk,--cache-type-k",
          [&type](const std::string& name) { type = cache_type_of(name); },
          "numbers of the cache: f16, or q8_0, which takes little more than half the memory and is not as "
          "exact")
      ->default_str("f16");
}

std::string progress_bar_text(std::string_view what, int64_t done_bytes, int64_t total_bytes) {
  constexpr int kCells = 24;
  const double share =
      static_cast<double>(done_bytes) / static_cast<double>(std::max<int64_t>(total_bytes, 1));
  const int cells = static_cast<int>(share * kCells);
  return fmt::format("{}  [{:<{}}] {:3.0f} %  {} of {}", what, std::string(static_cast<size_t>(cells), '#'),
                     kCells, 100 * share, short_count(static_cast<double>(done_bytes), "B"),
                     short_count(static_cast<double>(total_bytes), "B"));
}

std::string loading_bar_text(int64_t done_bytes, int64_t total_bytes) {
  return progress_bar_text("loading weights", done_bytes, total_bytes);
}

program::Progress loading_bar() {
  if (::isatty(STDERR_FILENO) != 1) return {};
  return [bar = LoadingBar()](int64_t done, int64_t total) mutable { bar.show(done, total); };
}

}  // namespace sluice::cli
