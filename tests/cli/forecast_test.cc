// sluice forecast: limits from the Program's costs, for hardware that is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "base/error.h"
#include "cli/hardware.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(ParseRate, KnowsAmountsAsUsersWriteThem) {
  EXPECT_DOUBLE_EQ(parse_rate("--bandwidth", "100GB/s"), 100e9);
  EXPECT_DOUBLE_EQ(parse_rate("--bandwidth", "3.35 TB/s"), 3.35e12);
  EXPECT_DOUBLE_EQ(parse_rate("--flops", "2T"), 2e12);
  EXPECT_DOUBLE_EQ(parse_rate("--flops", "989e12"), 989e12);
  EXPECT_DOUBLE_EQ(parse_rate("--flops", "1.5TFLOP/s"), 1.5e12);
  for (const char* text : {"", "GB/s", "0", "-1G", "1X", "nan", "inf", "1e300", "5 GHz"}) {
    EXPECT_THROW(parse_rate("--flops", text), UsageError) << text;
  }
}

class Forecast : public testing::Test, public test::CommandFolder {
 protected:
  Forecast() : CommandFolder("forecast") {}
  json reports(const std::string& arguments) {
    const auto result = run("forecast --json " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out)["reports"];
  }
};

// A hand-made count of GLM-4.7-Flash's Q4_0 weights came to 1.24 GB a token and 80 tokens/s at 100 GB/s. By
// its shapes it is between 2.0 and 2.3 GB, depending on the mix: Q4_0 has 18 bytes for 32 weights, a layer
// 12.24 MB of attention and 4 + 1 experts of 5.31 MB, the head 178 to 260 MB.
TEST_F(Forecast, AGlmTokenReadsTwoGigabytesAndMore) {
  for (const auto& [mix, least, most] :
       {std::tuple{"q4_0_plain", 2.0e9, 2.2e9}, std::tuple{"q4_0", 2.2e9, 2.33e9}}) {
    const json report = reports(std::string("--shapes glm-4.7-flash --bandwidth 100GB/s --mix ") + mix)[0];
    const double bytes = report["bytes_read"].get<double>(), rate = 1e6 / report["limit_us"].get<double>();
    EXPECT_GT(bytes, least) << mix;
    EXPECT_LT(bytes, most) << mix;
    EXPECT_GT(rate, 42.9) << mix;
    EXPECT_LT(rate, 49.5) << mix;
  }
}

TEST_F(Forecast, DepthAndBatchCostMore) {
  const json all = reports("--preset h200 -d 0,16384 --batch 1,8 -p 512 --shapes glm-4.7-flash");
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0]["test"], "pp512");
  EXPECT_EQ(all[2]["test"], "tg1 x 8");
  EXPECT_EQ(all[4]["test"], "tg1 @ d16384");
  const auto bytes = [&](int i) { return all[static_cast<size_t>(i)]["bytes_read"].get<double>(); };
  EXPECT_GT(bytes(2), 2 * bytes(1));  // more experts, not eight times the weights
  EXPECT_LT(bytes(2), 5 * bytes(1));
  // 47 layers' rows of 512 + 64 numbers of 16 bits.
  EXPECT_NEAR(bytes(4) - bytes(1), 16384.0 * 47 * 576 * 2, 0.01 * bytes(4));
  // What the null backend took is what the limits say.
  for (const json& report : all) {
    EXPECT_NEAR(report["wall_us"].get<double>(), report["limit_us"].get<double>(),
                0.01 * report["limit_us"].get<double>());
  }
}

// By hand, GLM-4.7-Flash Q4_K_M: 46 layers x 4 experts of 2048 x 1536 x 3 numbers at 4.5 bits (a half of the
// down matrices at 6.56) are 1.0 to 1.15 GB a token, everything else 1.1 to 1.4 GB.
TEST_F(Forecast, ACardAndACpuShareWhatOneHasNoRoomFor) {
  const auto shared = [&](const std::string& arguments) {
    const auto result = run("forecast --json --shapes glm-4.7-flash --mix q4_k_m " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out)["shared"];
  };
  const json all = shared("--preset rtx-3060 --cpu-bandwidth 50GB/s --hit-rate 0,0.5,1 -p 4096");
  ASSERT_EQ(all.size(), 4u);
  const auto us = [&](int i, const char* what) { return all[static_cast<size_t>(i)][what].get<double>(); };
  EXPECT_EQ(all[0]["test"], "pp4096");
  EXPECT_EQ(all[0]["experts"], "streamed");
  // The CPU reads all selected experts, half of them, none.
  EXPECT_NEAR(us(1, "cpu_us"), 1.08e9 / 50e9 * 1e6, 0.1 * us(1, "cpu_us"));
  EXPECT_NEAR(us(2, "cpu_us"), 0.5 * us(1, "cpu_us"), 1);
  EXPECT_EQ(us(3, "cpu_us"), 0);
  EXPECT_NEAR(us(3, "limit_us"), 2.3e9 / 360e9 * 1e6, 0.1 * us(3, "limit_us"));
  // Neither is longer at work than the step takes, and hits make it shorter.
  EXPECT_GE(us(2, "limit_us"), std::max(us(2, "cpu_us"), us(2, "gpu_us")));
  EXPECT_LT(us(2, "limit_us"), us(1, "limit_us"));
  EXPECT_LT(us(3, "limit_us"), us(2, "limit_us"));
  // A prompt takes no longer than its experts' way to the card, or the card's computing.
  EXPECT_NEAR(us(0, "limit_us"), std::max(us(0, "copies_us"), us(0, "gpu_us")), 1);

  // More memory, more experts that have room: the default hit rate. A card with room for all is one device.
  const double small = shared("--preset rtx-3060")[0]["hit_rate"],
               large = shared("--preset rtx-4060-ti")[0]["hit_rate"];
  EXPECT_GT(small, 0.4);
  EXPECT_LT(small, large);
  EXPECT_LT(large, 1);
  EXPECT_EQ(reports("--shapes glm-4.7-flash --preset rtx-4090").size(), 1u);

  EXPECT_EQ(run("forecast --shapes glm-4.7-flash --preset rtx-3060 --gpu-memory 1GiB").code, 1);
  EXPECT_EQ(run("forecast --shapes glm-4.7-flash --preset rtx-3060 --hit-rate 1.5").code, 2);
  EXPECT_EQ(run("forecast --shapes glm-4.7-flash --preset m2 --hit-rate 0.5").code, 2);
  EXPECT_THAT(run("forecast --shapes glm-4.7-flash --preset rtx-3060").out, HasSubstr("hit rate"));
}

TEST_F(Forecast, SpeaksToPeople) {
  const auto result = run("forecast --preset m2 --ops");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("100.0 GB/s"));
  EXPECT_THAT(result.out, HasSubstr("moe_gate_up"));
  EXPECT_THAT(run("forecast --help").out, HasSubstr("data sheet"));
  EXPECT_EQ(run("forecast").code, 2);
  EXPECT_EQ(run("forecast --preset m9").code, 2);
  EXPECT_EQ(run("forecast --bandwidth fast").code, 2);
  EXPECT_EQ(run("forecast --preset m2 --shapes none").code, 1);
}

}  // namespace
}  // namespace sluice::cli
