// Every op at every case on the CPU backend: time, and bytes and FLOPs a second from the op's own cost.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "support/op_case.h"

namespace {

using namespace sluice::test;

void run_case(benchmark::State& state, const OpCase& op_case, bool fused) {
  CaseRun run(op_case, 11);
  const auto backend = sluice::backend::make_cpu_backend({.fused = fused});
  const auto executable = run.compile(*backend);
  const auto rows = static_cast<double>(run.rows());
  const StepShape shape{.rows = rows, .outputs = rows, .context = (rows + 1) / 2, .cache_rows = rows};
  const Cost cost = total_cost(run.program(), shape);
  for (auto _ : state) run.run(*executable);
  const auto per_second = [&](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["bytes/s"] = per_second(cost.bytes_read + cost.bytes_written);
  state.counters["FLOP/s"] = per_second(cost.flops);
}

}  // namespace

int main(int argc, char** argv) {
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      const std::string name = fmt::format("{}/{}", op.name, op_case.name);
      benchmark::RegisterBenchmark(name.c_str(), run_case, op_case, true)->UseRealTime();
      // What fusing gains: the same work as the expansion's ops.
      if (op.expand != nullptr) {
        benchmark::RegisterBenchmark((name + " expanded").c_str(), run_case, op_case, false)->UseRealTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
