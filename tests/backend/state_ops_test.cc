// Ops with a state give the same bits however a sequence's rows are cut into steps, and whoever else has rows
// in them.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "support/isas.h"
#include "support/state_cuts.h"

namespace sluice::test {
namespace {

TEST(StateOps, GiveTheSameBitsHoweverRowsAreCut) {
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      const Program program = program_of(op_case);
      if (!program.has_states()) continue;
      const Tensor& state = program[program.caches().front()];
      // The tier generic takes its time.
      const bool small = state.shape[1] * state.shape[2] < (int64_t{1} << 14);
      for (const backend::cpu::Isa isa : usable_isas()) {
        if (!small && isa == backend::cpu::Isa::Generic) continue;
        const auto cpu = backend::make_cpu_backend({.threads = 1, .isa = isa});
        expect_same_bits(op_case, *cpu);
      }
      const auto team = backend::make_cpu_backend({.threads = 3});
      expect_same_bits(op_case, *team);
    }
  }
}

}  // namespace
}  // namespace sluice::test
