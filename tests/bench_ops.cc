// The op table's own cases (small shapes, fused and expanded) under Google Benchmark. What an op is measured
// with is profile/op_bench, as for `sluice opbench`, which takes the models' shapes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "profile/op_bench.h"
#include "support/op_case.h"

namespace {

using namespace sluice::test;

void run_case(benchmark::State& state, const OpCase& op_case, bool fused) {
  const CaseRun run(op_case, 11);
  const auto backend = sluice::backend::make_cpu_backend({.fused = fused});
  sluice::profile::OpBench bench(*backend, run.program(), run.program().ops().back(), run.weights(),
                                 {.rows = run.rows(), .context = run.rows()});
  for (auto _ : state) state.SetIterationTime(1e-9 * bench.round());
  const Cost cost = bench.cost();
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
      benchmark::RegisterBenchmark(name.c_str(), run_case, op_case, true)->UseManualTime();
      // What fusing gains: the same work as the expansion's ops.
      if (op.expand != nullptr) {
        benchmark::RegisterBenchmark((name + " expanded").c_str(), run_case, op_case, false)->UseManualTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
