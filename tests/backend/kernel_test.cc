// A kernel tells where it is defined without being asked to.
#include "backend/cpu/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

constexpr int kLineAbove = __LINE__;
const Kernel kDefinedHere{"defined here", Share::Other, nullptr, nullptr};

TEST(Kernel, KnowsTheFileAndLineOfItsDefinition) {
  EXPECT_THAT(kDefinedHere.file, testing::EndsWith("tests/backend/kernel_test.cc"));
  EXPECT_EQ(kDefinedHere.line, kLineAbove + 1);
  EXPECT_THAT(kRoute.file, testing::EndsWith("src/backend/cpu/ops/route.cc"));
  EXPECT_NE(kRmsNorm.line, kRope.line);
}

}  // namespace
}  // namespace sluice::backend::cpu
