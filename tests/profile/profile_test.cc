// Times and costs joined by kind of op.
#include "profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/builder.h"

namespace sluice::profile {
namespace {

TEST(Profile, SumsCallsAndTakesMediansOfStepSums) {
  program::Program program;
  program::Builder b(program);
  const auto table = b.weight("table", quant::Type::F32, 1, 10, 64);
  const auto norm = b.weight("norm", quant::Type::F32, 1, 1, 64);
  b.rms_norm(b.rms_norm(b.embed(table), norm, 1e-5f), norm, 1e-5f);
  const std::vector<std::vector<int64_t>> ns = {{1000, 2000, 5000}, {1000, 9000, 9000}, {1500, 3000, 3000}};
  const auto rows = summarize(program, ns, {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].op, "rms_norm");
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_DOUBLE_EQ(rows[0].us, 7.0);  // sums 7, 18, 6
  EXPECT_DOUBLE_EQ(rows[0].cost.bytes_read, 2 * 2 * 64 * 4);
  EXPECT_EQ(rows[1].op, "embed");
  EXPECT_DOUBLE_EQ(rows[1].us, 1.0);
  EXPECT_THAT(table_text(rows), testing::HasSubstr("all                   3"));
}

}  // namespace
}  // namespace sluice::profile
