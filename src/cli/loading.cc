#include "cli/loading.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace sluice::cli {
namespace {

constexpr int64_t kLeastBytes = 64 << 20;  // less is loaded before anybody could read a bar

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
  return bar_text(std::string(what), done_bytes, total_bytes,
                  fmt::format("{} of {}", short_count(static_cast<double>(done_bytes), "B"),
                              short_count(static_cast<double>(total_bytes), "B")));
}

std::string loading_bar_text(int64_t done_bytes, int64_t total_bytes) {
  return progress_bar_text("loading weights", done_bytes, total_bytes);
}

program::Progress loading_bar() {
  return [line = std::make_shared<ProgressLine>()](int64_t done, int64_t total) {
    if (total < kLeastBytes) return;
    if (done == total) return line->clear();
    line->show([&] { return loading_bar_text(done, total); });
  };
}

}  // namespace sluice::cli
