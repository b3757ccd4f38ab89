// Expert ids stay where they are until a step has ended, so that they can be counted then.
#include <gtest/gtest.h>

#include "program/builder.h"

namespace sluice::program {
namespace {

TEST(PlanMemory, NoOtherTensorLiesWhereIdsLie) {
  Program program;
  Builder b(program);
  TensorId x = b.activation("x", kStepRows, 1, 16);
  std::vector<TensorId> ids;
  for (int layer = 0; layer < 4; ++layer) {
    Route route{.gating = Gating::Sigmoid};
    route.logits.id = b.rms_norm(x, b.weight("norm", quant::Type::F32, 1, 1, 16), 1e-5f);
    b.route(route, 2);
    ids.push_back(route.ids.id);
    x = route.logits.id;
  }
  const MemoryPlan plan = plan_memory(program, 8, 1);
  const auto range = [&](TensorId id) {
    const int64_t begin = plan.offset_bytes[static_cast<size_t>(id)];
    return std::pair(begin, begin + 8 * program[id].columns() * 4);
  };
  for (const TensorId id : ids) {
    const auto [begin, end] = range(id);
    ASSERT_GE(begin, 0);
    for (TensorId other = 0; other < static_cast<TensorId>(program.tensors().size()); ++other) {
      if (other == id || program[other].kind != Kind::Activation || other < id) continue;
      const auto [first, last] = range(other);
      EXPECT_TRUE(last <= begin || end <= first) << program[other].name;
    }
  }
}

}  // namespace
}  // namespace sluice::program
