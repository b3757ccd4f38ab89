// sluice opbench: shapes are those of the models, figures are what the Program costs, cold is cold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/assemble.h"
#include "model/model.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::HasSubstr;
using testing::Not;

class OpBench : public testing::Test, public test::CommandFolder {
 protected:
  OpBench() : CommandFolder("opbench") {}
  json ops(const std::string& arguments) {
    const CommandResult result = run("opbench -o json --seconds 0.001 -t 1 " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? json::parse(result.out)["ops"] : json::array();
  }
};

TEST_F(OpBench, ShapesAreTheModels) {
  const std::string glm = run("opbench --list --shapes glm-4.7-flash --mix q4_0").out;
  EXPECT_THAT(glm, HasSubstr("2 x 64x1536x2048 Q4_0 + 2 x 1536x2048 Q5_K"));
  EXPECT_THAT(glm, HasSubstr("154880x2048 Q6_K"));
  EXPECT_THAT(glm, HasSubstr("20x512x192 Q8_0"));
  EXPECT_EQ(glm.find("mla_attend"), glm.rfind("mla_attend")) << "one shape, 47 layers";
  const std::string all = run("opbench --list").out;
  EXPECT_THAT(all, HasSubstr("64x1408x2048 MXFP4"));
  EXPECT_THAT(all, HasSubstr("2 x 6144x2048 Q4_K"));
  const std::string some = run("opbench matmul --list --shapes deepseek-v2-lite --type Q6_K").out;
  EXPECT_THAT(some, HasSubstr("102400x2048 Q6_K"));
  EXPECT_THAT(some, Not(HasSubstr("Q4_0")));
  EXPECT_THAT(some, Not(HasSubstr("moe")));
  // What a backend has no kernel for is there as its parts, and nothing of it is measured twice.
  EXPECT_THAT(glm, Not(HasSubstr("mla_heads")));
  EXPECT_THAT(glm, HasSubstr("rms_norm"));
}

TEST_F(OpBench, AMixMayBeATypeAlone) {
  const std::string list = run("opbench --list --shapes glm-4.7-flash --mix Q2_K").out;
  EXPECT_THAT(list, HasSubstr("2 x 64x1536x2048 Q2_K + 2 x 1536x2048 Q2_K"));
  EXPECT_THAT(list, HasSubstr("154880x2048 Q2_K"));
  EXPECT_THAT(list, HasSubstr("20x512x192 Q8_0")) << "192 columns are no whole blocks of 256";
  EXPECT_THAT(list, Not(HasSubstr("Q4_0")));
  for (const char* none : {"Q9_K", "TQ2_0", "q2_k"})
    EXPECT_THAT(run(std::string("opbench --list --mix ") + none).err, HasSubstr("no mix of this name"));
}

TEST_F(OpBench, CallsTimesBytesAreTheWholeProgram) {
  const std::string path = bundled_model_path();
  double bytes = 0, flops = 0;
  for (const json& op : ops("-m " + path + " --warm -d 100")) {
    bytes += op["calls"].get<double>() * op["bytes_read"].get<double>();
    flops += op["calls"].get<double>() * op["flops"].get<double>();
    const json& warm = op["warm"];
    EXPECT_GT(warm["us"].get<double>(), 0);
    EXPECT_LE(warm["min_us"].get<double>(), warm["us"].get<double>());
    EXPECT_NEAR(warm["bytes_per_second"].get<double>(),
                1e6 * op["bytes_read"].get<double>() / warm["us"].get<double>(), 1);
    EXPECT_THAT(op["file"].get<std::string>(), testing::StartsWith("src/backend/cpu/"));
    EXPECT_FALSE(op.contains("cold"));
  }
  const program::Program runs =
      program::legalize(model::Model::load(path).program, *make_backend("cpu", 1), 1);
  const program::Cost cost = program::total_cost(runs, {.context = 100, .cache_rows = 100, .selected = 0});
  EXPECT_NEAR(bytes, cost.bytes_read, 1e-6 * bytes);
  EXPECT_NEAR(flops, cost.flops, 1e-6 * flops);
}

TEST_F(OpBench, ColdRotatesOverTheBytesAskedFor) {
  int streamed = 0;
  for (const json& op : ops("-m " + bundled_model_path() + " --cold --rotate 30MB -r 1,4")) {
    EXPECT_FALSE(op.contains("warm"));
    EXPECT_GE(op["cold"]["rotated_bytes"].get<double>(), 30e6) << op.dump();
    EXPECT_LE(op["cold"]["rotated_bytes"].get<double>(), 40e6) << op.dump();
    EXPECT_NE(op["op"], "rope");
    EXPECT_NE(op["op"], "embed");
    ++streamed;
  }
  EXPECT_GE(streamed, 8);
}

TEST_F(OpBench, PrintsATable) {
  const CommandResult result =
      run("opbench mla_attend -m " + bundled_model_path() + " --rotate 20MB --seconds 0.001");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cold us"));
  EXPECT_THAT(result.out, HasSubstr("| mla_attend "));
  EXPECT_THAT(result.err, HasSubstr("GB/s"));
}

TEST_F(OpBench, RefusesNonsense) {
  EXPECT_EQ(run("opbench none").code, 2);
  EXPECT_EQ(run("opbench -r 0").code, 2);
  EXPECT_EQ(run("opbench --rotate much").code, 2);
  const std::string one = " --shapes glm-4.7-flash --mix q4_0";  // of all, collecting the ops takes seconds
  const CommandResult none = run("opbench rope --type Q4_0" + one);
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("sluice opbench --list shows all"));
  const CommandResult large = run("opbench --cold --rotate 900TB" + one);
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.err, HasSubstr("are available: --warm, or a smaller --rotate"));
}

}  // namespace
}  // namespace sluice::cli
