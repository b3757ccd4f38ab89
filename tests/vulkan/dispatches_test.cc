// How many kernels are started for a layer: a function of the program, for which no device is needed.
#include <gtest/gtest.h>

#include <map>

#include "backend/vulkan/expand.h"
#include "backend/vulkan/kernels.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

namespace vulkan = backend::vulkan;

program::Program legal(const program::Program& program) {
  return program::legalize(
      program, "vulkan", [](const auto& p, const auto& op) { return vulkan::has(p, op); },
      vulkan::expand_otherwise);
}

/// Dispatches of the last layer in steps of so many rows, with contexts of so many positions.
size_t dispatches_of_a_layer(const char* name, int64_t rows, int64_t context, int64_t* waits = nullptr) {
  const program::Program program = legal(model::Model::load(golden_case(name).model).program);
  const vulkan::Layout layout(program, {.max_rows = 512, .max_outputs = 8, .cache_pages = 64}, 32, true);
  int last = 0;
  for (const program::Op& op : program.ops()) last = std::max(last, static_cast<int>(op.layer));
  size_t count = 0;
  for (const program::Op& op : program.ops()) {
    if (op.layer != last) continue;
    const auto list = vulkan::dispatches(layout, op, {rows, 1, context});
    count += list.size();
    if (waits != nullptr)
      *waits += std::count_if(list.begin(), list.end(), [](const auto& d) { return d.waits; });
  }
  return count;
}

TEST(VulkanDispatches, AreNineForALayerOfLatentAttentionAndExperts) {
  EXPECT_EQ(dispatches_of_a_layer("glm-q4_k_m", 1, 512), 9U);
}

/// Several rows are put into eight bits once for all workgroups of a product, and choose their experts once.
TEST(VulkanDispatches, AreSeventeenForSeveralRows) {
  EXPECT_EQ(dispatches_of_a_layer("glm-q4_k_m", 8, 512), 17U);
}

/// Rows are sorted by experts before each half of these, whose sum is a dispatch of its own.
TEST(VulkanDispatches, AreTwentyOneWhereExpertsHaveTheirRowsTogether) {
  EXPECT_EQ(dispatches_of_a_layer("glm-q4_k_m", 16, 512), 21U);
}

TEST(VulkanDispatches, AreTenInLongContexts) { EXPECT_EQ(dispatches_of_a_layer("glm-q4_k_m", 1, 4096), 10U); }

/// What else a dispatch does takes words of its parameters, which every device has 128 bytes of.
TEST(VulkanDispatches, HaveRoomForTheirParameters) {
  for (const char* name : {"glm-q4_k_m", "lite-legacy-kv_b", "v3-groups", "gpt-oss-mxfp4"}) {
    const bool other = std::string(name) == "gpt-oss-mxfp4";
    const Golden golden = golden_case(name, other ? "make_moe.py" : "make.py");
    const program::Program program = legal(model::Model::load(golden.model).program);
    const vulkan::Layout layout(program, {.max_rows = 512, .max_outputs = 8, .cache_pages = 64}, 32, true);
    for (const int64_t rows : {1, 8, 16, 64, 512}) {
      for (const program::Op& op : program.ops()) {
        for (const auto& dispatch : vulkan::dispatches(layout, op, {rows, 1, 4096})) {
          EXPECT_LE(dispatch.params.size(), vulkan::kMostParams) << program.op_name(op);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
