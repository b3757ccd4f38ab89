// Ops with a state on the CUDA backend. In steps of up to 128 rows these go one by one there, too, so that
// their bits do not depend on how a sequence is cut into steps. In longer ones delta_rule takes 32 rows at a
// time.
#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/relative_error.h"
#include "support/state_cuts.h"

namespace sluice::test {
namespace {

constexpr int32_t kPromptRows = 300;

/// Every case of an op with a state.
template <typename Each>
void each_case(const Each& each) {
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      if (CaseRun(op_case, 1).program().has_states()) each(op_case);
    }
  }
}

TEST(CudaStateOps, GiveTheSameBitsHoweverRowsAreCut) {
  CUDA_OR_SKIP(cuda);
  each_case([&](const OpCase& op_case) { expect_same_bits(op_case, cuda); });
}

TEST(CudaStateOps, PromptsGiveTheSameBitsWhereverChunksAreCut) {
  CUDA_OR_SKIP(cuda);
  each_case([&](const OpCase& op_case) {
    Cuts cuts(op_case, kPromptRows);
    const auto whole = cuts.run(cuda, {{{0, 0, kPromptRows, {0, 1}}}, {{1, 0, kPromptRows, {0, 2}}}});
    const auto cut = cuts.run(cuda, {{{0, 0, 160, {0, 1}}},
                                     {{1, 0, 32, {0, 2}}, {0, 160, kPromptRows, {1, 0}}},
                                     {{1, 32, kPromptRows, {2, 3}}}});
    EXPECT_EQ(whole, cut) << op_case.name;
  });
}

/// deviation: of what goes in. Of large numbers decays are 1 or next to nothing, and so are betas.
void expect_prompts_agree(Backend& cuda, float deviation) {
  const auto reference = backend::make_ref_backend();
  each_case([&](const OpCase& op_case) {
    Cuts cuts(op_case, kPromptRows, deviation);
    const std::vector<std::vector<Stretch>> steps{{{0, 0, 145, {0, 1}}, {1, 0, 1, {0, 2}}},
                                                  {{1, 1, 8, {2, 3}}, {0, 145, kPromptRows, {1, 0}}},
                                                  {{1, 8, kPromptRows, {3, 2}}}};
    EXPECT_LE(relative_error(cuts.run(cuda, steps), cuts.run(*reference, steps)),
              cuda.tolerance(CaseRun(op_case, 1).program()))
        << op_case.name;
  });
}

TEST(CudaStateOps, PromptsAgreeWithReferenceWhereverTheyAreCut) {
  CUDA_OR_SKIP(cuda);
  expect_prompts_agree(cuda, 1);
}

TEST(CudaStateOps, PromptsOfStrongDecaysAgreeWithReference) {
  CUDA_OR_SKIP(cuda);
  expect_prompts_agree(cuda, 16);
}

}  // namespace
}  // namespace sluice::test
