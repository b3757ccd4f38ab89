// Ops with a state on the CUDA backend: rows go one by one there, too, so that their bits do not depend on
// how a sequence is cut into steps.
#include <gtest/gtest.h>

#include "support/cuda.h"
#include "support/state_cuts.h"

namespace sluice::test {
namespace {

TEST(CudaStateOps, GiveTheSameBitsHoweverRowsAreCut) {
  CUDA_OR_SKIP(cuda);
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      if (CaseRun(op_case, 1).program().has_states()) expect_same_bits(op_case, cuda);
    }
  }
}

}  // namespace
}  // namespace sluice::test
