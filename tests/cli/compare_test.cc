// sluice compare as a user meets it. That it finds wrong kernels is tests/engine/compare_test.cc's matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/golden.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;

class Compare : public testing::Test, public test::CommandFolder {
 protected:
  Compare() : CommandFolder("compare") {}
};

TEST_F(Compare, TheCpuBackendIsWithinToleranceOnTheBundledModel) {
  const CommandResult result = run("compare -n 5");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cpu against ref on 5 tokens: "));
  EXPECT_THAT(result.out, HasSubstr("mla_attend"));
  EXPECT_EQ(result.err, "");
}

TEST_F(Compare, JsonHoldsEveryResult) {
  const test::Golden golden = test::golden_case("v3-groups");
  const CommandResult result = run("compare --json -n 7 -m " + golden.model + " --tokens " +
                                   test::source_path("tests/golden/v3-groups.json"));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["tokens"], 7);
  EXPECT_TRUE(json["within"].get<bool>());
  EXPECT_TRUE(json["first"].is_null());
  EXPECT_GT(json["ops"].size(), 30u);
  EXPECT_LT(json["logits"]["kl"].get<double>(), 1e-3);
  for (const auto& op : json["ops"])
    EXPECT_LE(op["error"].get<double>(), op["tolerance"].get<double>()) << op["op"];
}

TEST_F(Compare, NamesWhatIsWrong) {
  EXPECT_EQ(run("compare --against gpu").code, 2);
  EXPECT_EQ(run("compare -n 0").code, 2);
  EXPECT_THAT(run("compare --tokens /nowhere").err, HasSubstr("/nowhere: "));
  EXPECT_THAT(run("compare -m /nowhere").err, HasSubstr("/nowhere: "));
}

}  // namespace
}  // namespace sluice::cli
