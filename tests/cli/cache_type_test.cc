// --cache-type as a user meets it: what it is called, what it takes, and what it costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/golden.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;
using test::CommandResult;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CacheType : public testing::Test, public test::CommandFolder {
 protected:
  CacheType() : CommandFolder("cache_type") {}

  Json json(const std::string& command) const {
    const CommandResult result = run(command);
    EXPECT_EQ(result.code, 0) << command << ": " << result.err;
    return Json::parse(result.out);
  }
  const std::string model_ = test::source_path("models/fairy-tales.gguf");
};

TEST_F(CacheType, OthersAreRefusedByName) {
  for (const char* command :
       {"run", "chat", "serve", "bench", "load", "profile", "compare", "inspect --memory"}) {
    const CommandResult result = run(std::string(command) + " --cache-type q4_0 -m " + model_);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.err, HasSubstr("--cache-type q4_0: expected f16 or q8_0")) << command;
  }
  EXPECT_EQ(run("bench -ctk f16,q4_0 -p 0 -n 1").code, 2);
}

TEST_F(CacheType, EightBitsTakeLittleMoreThanHalf) {
  const Json f16 = json("inspect --memory --json -c 2048 " + model_);
  for (const char* flag : {"--cache-type q8_0", "-ctk q8_0", "--cache-type-k q8_0"}) {
    const Json q8 = json(std::string("inspect --memory --json -c 2048 ") + flag + " " + model_);
    // 128 codes, 32 halves and 4 scales, filled up to 16 bytes, in place of 160 halves.
    EXPECT_EQ(q8["cache_bytes"].get<int64_t>() * 320, f16["cache_bytes"].get<int64_t>() * 208) << flag;
    EXPECT_EQ(q8["weights_bytes"], f16["weights_bytes"]);
  }
}

TEST_F(CacheType, TheProgramAndItsBytesShowIt) {
  EXPECT_THAT(run("inspect --program " + model_).out, AllOf(HasSubstr(":F16"), Not(HasSubstr(":Q8_0["))));
  for (const char* list : {"--program", "--bound"}) {
    const Json f16 = json(std::string("inspect --json ") + list + " " + model_);
    const Json q8 = json(std::string("inspect --json --cache-type q8_0 ") + list + " " + model_);
    EXPECT_EQ(f16["total"]["flops"], q8["total"]["flops"]);
    // A row of each of 8 layers is read, and one is written.
    for (const char* what : {"bytes_read", "bytes_written"}) {
      EXPECT_EQ(f16["total"][what].get<double>() - q8["total"][what].get<double>(), 8 * (320 - 208)) << what;
    }
    EXPECT_THAT(run(std::string("inspect --cache-type q8_0 ") + list + " " + model_).out,
                HasSubstr("cache=cache[8, 64, 160]:Q8_0"));
  }
}

TEST_F(CacheType, CompareHoldsOpsToTheSameCacheAndTellsWhatItCosts) {
  const Json same = json("compare --json -n 40 --cache-type q8_0");
  EXPECT_TRUE(same["within"].get<bool>());
  const Json loss = json("compare --json -n 40 --backend ref --cache-type q8_0 --against-cache-type f16");
  EXPECT_TRUE(loss["within"].get<bool>());
  EXPECT_GT(loss["logits"]["kl"].get<double>(), 1e-8);  // float32 throughout, but for the cache
  EXPECT_LT(loss["logits"]["kl"].get<double>(), 1e-4);
  EXPECT_EQ(run("compare --against-cache-type q5_0").code, 2);
}

TEST_F(CacheType, BenchTakesListsAndNamesWhatItMeasured) {
  const Json records = json("bench -ctk f16,q8_0 -p 0 -n 1 -r 1 --no-warmup -d 70 -o json -m " + model_);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["type_k"], "f16");
  EXPECT_EQ(records[1]["type_k"], "q8_0");
  EXPECT_EQ(records[0]["test"], "tg1 @ d70");
  EXPECT_EQ(records[1]["test"], "tg1 @ d70 ctk q8_0");
  const double saved =
      records[0]["bytes_per_token"].get<double>() - records[1]["bytes_per_token"].get<double>();
  EXPECT_EQ(saved, 8 * 71 * (320 - 208));
}

TEST_F(CacheType, ATaleIsToldWithIt) {
  const CommandResult result = run("run -n 20 -s 1 --temp 0 --cache-type q8_0 -p 'Once upon a time'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_GT(result.out.size(), 30u);
}

}  // namespace
}  // namespace sluice::cli
