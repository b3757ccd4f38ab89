#include "cli/bench_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/offload.h"

namespace sluice::cli {
namespace {

/// Calls step(its shape, how many there are, whether it is a prompt's) for all kinds of steps of a test.
template <typename F>
void for_steps(const BenchTest& test, int64_t max_rows, const profile::ExpertCount& experts, const F& step) {
  for (int64_t done = 0; done < test.prompt; done += max_rows) {
    const auto rows = static_cast<double>(std::min(max_rows, test.prompt - done));
    const auto before = static_cast<double>(test.depth + done);
    // Steps of all rows select as many experts as was counted; a last one of fewer is left to the forecast.
    const bool full = rows == static_cast<double>(std::min(max_rows, test.prompt));
    step(program::StepShape{.rows = rows,
                            .context = before + (rows + 1) / 2,
                            .cache_rows = before + rows,
                            .selected = test.gen == 0 && full ? experts.distinct : 0},
         1.0, true);
  }
  if (test.gen == 0) return;
  const auto parallel = static_cast<double>(test.parallel);
  const double context =
      static_cast<double>(test.depth + test.prompt) + (static_cast<double>(test.gen) + 1) / 2;
  step(program::StepShape{.rows = parallel,
                          .outputs = parallel,
                          .context = context,
                          .cache_rows = parallel * context,
                          .sequences = parallel,
                          .selected = experts.distinct},
       static_cast<double>(test.gen), false);
}

}  // namespace

program::Cost cost_of(const program::Program& program, const BenchTest& test, int64_t max_rows,
                      const profile::ExpertCount& experts) {
  program::Cost sum;
  for_steps(test, max_rows, experts, [&](const program::StepShape& shape, double count, bool) {
    const program::Cost step = program::total_cost(program, shape);
    sum += {count * step.bytes_read, count * step.bytes_written, count * step.flops};
  });
  return sum;
}

double step_bytes(const program::Program& program, const BenchTest& test, int64_t max_rows) {
  const int64_t steps = (test.prompt + max_rows - 1) / max_rows + test.gen;
  return cost_of(program, test, max_rows, {}).bytes_read / static_cast<double>(steps);
}

std::optional<SharedPeaks> measured_peaks(program::Backend& backend) {
  const std::vector<program::Backend*> places = backend.places();
  if (places.size() != 2) return {};
  return SharedPeaks{places[0]->peaks(), places[1]->peaks(), places[0]->measure_link_bandwidth()};
}

double shared_seconds(const program::Executable& executable, const program::Program& uncut,
                      const BenchTest& test, int64_t max_rows, const profile::ExpertCount& experts,
                      const SharedPeaks& peaks, const program::ExpertUse& use) {
  const program::Program cut = use.layers > 0
                                   ? program::offload_experts(uncut, static_cast<size_t>(use.layers))
                                   : executable.program();
  // A prompt selects all experts, of which some have copies.
  int64_t all = 0;
  for (const int64_t one : program::slots_of(uncut, static_cast<size_t>(use.layers), kUnknownMemory))
    all += one;
  const double kept = all > 0 ? static_cast<double>(use.slots) / static_cast<double>(all) : 0;
  double sum = 0;
  for_steps(test, max_rows, experts, [&](const program::StepShape& shape, double count, bool prompt) {
    sum += count * shared_limit(cut, shape, peaks, prompt ? kept : use.hit_rate()).seconds;
  });
  return sum;
}

std::string hits_text(const program::ExpertUse& use) {
  return fmt::format(
      "the GPU had copies of {:.1f}% of the experts that were selected in {} layers: of {}, and {} were "
      "brought",
      100 * use.hit_rate(), use.layers, use.slots, use.brought);
}

ExpertHits::ExpertHits(const program::Executable& executable)
    : counts_(dynamic_cast<const program::ExpertCounts*>(&executable)),
      before_(counts_ != nullptr ? counts_->expert_use() : program::ExpertUse{}) {}

program::ExpertUse ExpertHits::use() const {
  if (counts_ == nullptr) return {};
  program::ExpertUse use = counts_->expert_use();
  use.selected -= before_.selected, use.hits -= before_.hits, use.brought -= before_.brought;
  return use;
}

}  // namespace sluice::cli
