// sluice verify: its report of the bundled model, and of a file whose weights predict nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gguf/gguf.h"
#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/golden.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;

class Verify : public testing::Test, public test::CommandFolder {
 protected:
  Verify() : CommandFolder("verify") {}

  nlohmann::json report(const std::string& name) const {
    return nlohmann::json::parse(std::ifstream(path(name)), nullptr, false);
  }
};

TEST_F(Verify, TheBundledModelIsWell) {
  const CommandResult result = run("verify --backend cpu -o " + path("report.json"));
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json json = report("report.json");
  EXPECT_TRUE(json["ok"]);
  EXPECT_EQ(json["backend"], "cpu");
  EXPECT_EQ(json["model"]["file"], "fairy-tales.gguf") << "no folder";
  EXPECT_EQ(json["ops"]["layers"], json["model"]["layers"]);
  EXPECT_GT(json["ops"]["results"], 10);
  EXPECT_EQ(json["ops"]["results"], json["ops"]["within_tolerance"]);
  EXPECT_GT(json["speed"]["answer_tokens_per_second"], 0);
  EXPECT_THAT(result.out, HasSubstr("ok: written to"));
  EXPECT_GT(json["text"]["tokens"], 200);
  EXPECT_LT(json["text"]["nats"], 0.6 * std::log(json["model"]["vocabulary"].get<double>()))
      << "a model of tales knows how they go";
  // Activations of eight bits: near ties may fall otherwise, and nothing else.
  const nlohmann::json& answer = json["answer"];
  EXPECT_EQ(answer["tokens"], 200);
  EXPECT_GE(answer["first_of_reference"], 180);
  EXPECT_GT(answer["logit_error"], 0.001);
  EXPECT_LT(answer["farthest_behind"], 3 * answer["logit_error"].get<double>());
}

TEST_F(Verify, TheReferenceWritesWhatItFindsLikeliest) {
  const CommandResult result = run("verify --backend ref -o " + path("reference.json"));
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json answer = report("reference.json")["answer"];
  EXPECT_EQ(answer["first_of_reference"], 200) << "a row a step or many: the same numbers";
  EXPECT_EQ(answer["same_until"], 200);
  EXPECT_EQ(answer["farthest_behind"], 0);
  EXPECT_EQ(answer["logit_error"], 0);
}

TEST_F(Verify, AModelThatPredictsTheContraryIsNotWell) {
  test::GgufCopy copy(gguf::File::open(test::source_path("models/fairy-tales.gguf")));
  size_t at = 0;
  while (at < copy.plan.tensors.size() && copy.plan.tensors[at].name != "output_norm.weight") ++at;
  ASSERT_LT(at, copy.plan.tensors.size());
  for (size_t byte = 3; byte < copy.bytes[at].size(); byte += 4) copy.bytes[at][byte] ^= std::byte{0x80};
  copy.write(path("contrary.gguf"));
  const CommandResult result =
      run("verify --backend cpu -m " + path("contrary.gguf") + " -o " + path("contrary.json"));
  EXPECT_EQ(result.code, 1) << result.err;
  const nlohmann::json json = report("contrary.json");
  ASSERT_TRUE(json.is_object()) << "the report is what one wants then";
  EXPECT_TRUE(json["ops"]["ok"]) << "the arithmetic is right all the same";
  EXPECT_FALSE(json["text"]["ok"]);
  EXPECT_FALSE(json["ok"]);
}

TEST_F(Verify, SaysWhatItCannotRead) {
  const CommandResult result = run("verify -m " + path("none.gguf") + " -o " + path("none.json"));
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("none.gguf"));
  EXPECT_FALSE(std::ifstream(path("none.json")).good()) << "no report of nothing";
}

}  // namespace
}  // namespace sluice::cli
