#include "cli/fit.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/checked_options.h"
#include "cli/output.h"
#include "engine/kv_pool.h"
#include "program/places.h"

namespace sluice::cli {
namespace {

/// What is left free for others, and for what the driver takes beside what is asked for.
constexpr int64_t kMargin = int64_t{384} << 20;
/// The context that a model is fitted for where none is asked for, at most.
constexpr int64_t kFittedContext = 8192;
/// Rows of a step where the backend says nothing.
constexpr int64_t kFittedRows = 512;
/// Fewer rows of a step save little memory, and experts that stream come once a step.
constexpr int64_t kFewestRows = 256;

int64_t total(const program::MemoryNeeds& needs) {
  return needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes;
}

/// What is fitted: a program, and others whose room it must leave.
struct Fitting {
  const program::Program& program;
  int64_t model_context;
  std::vector<const program::Program*> beside = {};
};

/// Weights of the experts of the last mixtures.
int64_t moved_bytes(const Fitting& fitting, size_t count) {
  const std::vector<program::RoutedExperts> mixtures = program::routed_experts(fitting.program);
  int64_t bytes = 0;
  for (size_t i = mixtures.size() - count; i < mixtures.size(); ++i) bytes += mixtures[i].bytes;
  return bytes;
}

/// What the first place takes with mixtures at the second.
int64_t needs_of(const program::Backend& gpu, const Fitting& fitting, const program::CompileOptions& options,
                 const program::Offload& offload) {
  program::MemoryNeeds needs = offload.mixtures == 0
                                   ? gpu.memory_needs(fitting.program, options)
                                   : program::offload_needs(gpu, fitting.program, offload, options);
  for (const program::Program* other : fitting.beside) program::add(needs, gpu.memory_needs(*other, options));
  return total(needs);
}

}  // namespace

void add_gpu_memory_option(CLI::App& command, GpuShare& share) {
  add_size_option(
      command, "--gpu-memory", [&share](int64_t bytes) { share.bytes = bytes; },
      "of the GPU's memory at most, as 10GiB; experts that have no room are computed by the CPU (default: "
      "what is free)");
  command
      .add_option(
          "--stream-from", share.stream_rows,
          "rows of a step from which on experts of the CPU's memory come to the GPU, layer by layer; 0: "
          "from where that is sooner, as measured; -1: never, which saves the GPU's memory a layer's "
          "experts")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
  command
      .add_option(
          "--expert-cache", share.cache_mixtures,
          "layers whose experts the CPU computes beyond those that must: their room on the GPU holds "
          "copies of the experts that are used most, of all that the CPU has. The more, the sooner are "
          "answers whose experts repeat; -1: half as many as must, 0: none")
      ->check(CLI::Range(-1, 1 << 20))
      ->capture_default_str();
}

int64_t memory_size_of(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(stop, static_cast<size_t>(end - stop));
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kUnits = "KMGT";
    const size_t power = kUnits.find(static_cast<char>(unit.front() & ~0x20));
    unit.remove_prefix(1);
    const bool decimal = unit == "B";
    factor = power == std::string_view::npos || !(decimal || unit.empty() || unit == "iB" || unit == "i")
                 ? std::numeric_limits<double>::quiet_NaN()
                 : std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (error != std::errc() || !(bytes >= 1 && bytes < 0x1p62))
    throw UsageError(fmt::format("{}: expected a size of memory, as 10GiB, 12GB or 800M", text));
  return static_cast<int64_t>(bytes);
}

int64_t rows_with_room(const program::Backend& backend, int64_t wanted) {
  const auto* of_fit = dynamic_cast<const program::FittedRows*>(&backend);
  const int64_t fitted = of_fit != nullptr ? of_fit->fitted_rows() : 0;
  return fitted > 0 ? std::min(wanted, fitted) : wanted;
}

program::CompileOptions fitted_options(const program::Backend& gpu, int64_t model_context, const Fit& fit) {
  const int64_t context = fit.context > 0 ? fit.context : std::min(model_context, kFittedContext);
  const int64_t wanted = fit.rows > 0 ? fit.rows : gpu.facts().prompt_rows;
  return {.max_rows = wanted > 0 ? wanted : kFittedRows,
          .max_outputs = fit.outputs,
          .cache_pages = engine::KvPool::pages_for(context),
          .context = context,
          .warm = fit.warm};
}

program::Offload Fitted::offload() const { return {mixtures, bytes, stream_rows, slot_bytes, rows}; }

std::string Fitted::text() const {
  return fmt::format("GPU memory: {}; experts of {} of {} layers, {}, are computed by the CPU{}{}",
                     size_text(bytes), mixtures, all_mixtures, size_text(moved_bytes),
                     mixtures > 0 && stream_rows != program::kNeverStream
                         ? fmt::format(", or come to the GPU for prompts, {} rows a step at most", rows)
                         : "",
                     slots > 0 ? fmt::format("; the GPU has copies of {} of them", slots) : "");
}

namespace {

/// The fewest mixtures of experts that have to leave for the rest to have room. Throws Error where no number
/// is enough.
size_t mixtures_that_leave(const program::Backend& gpu, const Fitting& fitting,
                           const program::CompileOptions& options, const Fitted& fitted) {
  const auto needs_with = [&](size_t count) {
    return needs_of(gpu, fitting, options, {.mixtures = count, .stream_rows = fitted.stream_rows});
  };
  int64_t missing = needs_with(0) - fitted.bytes;
  if (missing <= 0) return 0;
  const std::vector<program::RoutedExperts> mixtures = program::routed_experts(fitting.program);
  size_t count = 0;
  while (count < mixtures.size() && missing > 0) missing -= mixtures[mixtures.size() - ++count].bytes;
  // What else changes with the place (other kernels, copies, room for what comes) is little.
  int64_t needed = needs_with(count);
  while (needed > fitted.bytes && count < mixtures.size()) needed = needs_with(++count);
  if (needed > fitted.bytes) {
    fail("needs {} of the GPU's memory{}, {} are available", size_text(needed),
         mixtures.empty() ? "" : " even with all routed experts in the CPU's", size_text(fitted.bytes));
  }
  return count;
}

/// The fewest mixtures that have to leave with steps of options.max_rows, or of half as many and so on, but
/// no fewer than `least`: then options say how many. Throws Error where no number is enough.
size_t mixtures_with_rows(const program::Backend& gpu, const Fitting& fitting,
                          program::CompileOptions& options, int64_t least, const Fitted& fitted) {
  while (true) {
    try {
      return mixtures_that_leave(gpu, fitting, options, fitted);
    } catch (const Error&) {
      if (options.max_rows / 2 < least) throw;
      options.max_rows /= 2;
    }
  }
}

/// With experts that are streamed, where there is memory for it.
std::optional<Fitted> fitted_streaming(const program::Backend& gpu, const Fitting& fitting,
                                       program::CompileOptions options, int64_t least, Fitted fitted,
                                       int64_t cpu_bytes) {
  if (!gpu.facts().streams || fitted.stream_rows == program::kNeverStream) return {};
  try {
    fitted.mixtures = mixtures_with_rows(gpu, fitting, options, least, fitted);
  } catch (const Error&) {
    return {};
  }
  fitted.rows = options.max_rows;
  fitted.moved_bytes = moved_bytes(fitting, fitted.mixtures);
  const bool has_room = cpu_bytes == kUnknownMemory || 2 * fitted.moved_bytes < cpu_bytes;
  return has_room ? std::optional(fitted) : std::nullopt;
}

/// With as many mixtures more at the second place as are asked for, and copies in the room that they leave;
/// nothing where that is too little, or where the CPU has no memory for it.
std::optional<Fitted> fitted_with_cache(const program::Backend& gpu, const Fitting& fitting,
                                        const program::CompileOptions& options, Fitted fitted, int64_t more,
                                        int64_t cpu_bytes) {
  fitted.mixtures += static_cast<size_t>(std::min<int64_t>(
      more, static_cast<int64_t>(fitted.all_mixtures) - static_cast<int64_t>(fitted.mixtures)));
  fitted.moved_bytes = moved_bytes(fitting, fitted.mixtures);
  if (cpu_bytes != kUnknownMemory && 2 * fitted.moved_bytes >= cpu_bytes) return {};
  program::Offload offload{fitted.mixtures, fitted.bytes, fitted.stream_rows};
  const auto needed = [&] { return needs_of(gpu, fitting, options, offload); };
  offload.slot_bytes = fitted.bytes - needed();
  // What slots take besides (other kernels, room for ids) is little.
  int64_t over = needed() - fitted.bytes;
  while (over > 0 && offload.slot_bytes > 0) {
    offload.slot_bytes -= over;
    over = needed() - fitted.bytes;
  }
  const std::vector<int64_t> slots = program::slots_of(fitting.program, fitted.mixtures, offload.slot_bytes);
  if (slots.empty()) return {};
  fitted.slot_bytes = offload.slot_bytes;
  fitted.slots = std::accumulate(slots.begin(), slots.end(), int64_t{0});
  return fitted;
}

Fitted fitted_for(const program::Backend& gpu, const Fitting& fitting, const Fit& fit, int64_t cpu_bytes) {
  Fitted fitted{.bytes = gpu.available_bytes(), .stream_rows = program::kNeverStream};
  if (fitted.bytes != kUnknownMemory) fitted.bytes = std::max<int64_t>(0, fitted.bytes - kMargin);
  if (fit.share.bytes > 0) fitted.bytes = std::min(fitted.bytes, fit.share.bytes);
  const int64_t least = std::max(kFewestRows, fit.outputs);  // every output is a row
  const program::CompileOptions most = fitted_options(gpu, fitting.model_context, fit);
  program::CompileOptions options = most;
  fitted.all_mixtures = program::routed_experts(fitting.program).size();
  fitted.mixtures = mixtures_with_rows(gpu, fitting, options, least, fitted);
  fitted.moved_bytes = moved_bytes(fitting, fitted.mixtures);
  fitted.rows = options.max_rows;
  if (fitted.mixtures == 0) return fitted;
  Fitted asked = fitted;
  asked.stream_rows = fit.share.stream_rows;
  if (const auto streaming = fitted_streaming(gpu, fitting, most, least, asked, cpu_bytes))
    fitted = *streaming;
  options.max_rows = fitted.rows;
  const int64_t more = fit.share.cache_mixtures < 0 ? (static_cast<int64_t>(fitted.mixtures) + 1) / 2
                                                    : fit.share.cache_mixtures;
  if (more == 0) return fitted;
  return fitted_with_cache(gpu, fitting, options, fitted, more, cpu_bytes).value_or(fitted);
}

}  // namespace

Fitted fit_to(const program::Backend& gpu, const model::Model& model, const Fit& fit, int64_t cpu_bytes) {
  try {
    return fitted_for(gpu, {model.program, model.spec.context}, fit, cpu_bytes);
  } catch (const Error& error) {
    fail("{}: {}", model.file.path(), error.what());
  }
}

Fitted fit_side_to(const program::Backend& gpu, const program::Program& side, int64_t model_context,
                   const Fit& fit, int64_t cpu_bytes) {
  std::vector<program::Program> stretches = program::stretches(side);
  std::erase_if(stretches, [](const program::Program& one) { return one.ops().empty(); });
  std::stable_partition(stretches.begin(), stretches.end(),
                        [](const program::Program& one) { return !program::routed_experts(one).empty(); });
  if (stretches.empty()) return {.stream_rows = program::kNeverStream};
  Fitting fitting{stretches.front(), model_context};
  for (size_t i = 1; i < stretches.size(); ++i) fitting.beside.push_back(&stretches[i]);
  return fitted_for(gpu, fitting, fit, cpu_bytes);
}

}  // namespace sluice::cli
