// Numbers keep their digits, halves of surrogate pairs do no harm, and what is no JSON stays none.
#include "text/exact_json.h"

#include <gtest/gtest.h>

namespace sluice::text {
namespace {

TEST(ExactJson, KeepsDigits) {
  for (const char* text :
       {"0", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551615",
        "18446744073709551616", "-9223372036854775809", "123456789012345678901234567890", "0.1",
        "0.1000000000000000055511151231257827", "1e400", "-1e400", "1e-400", "3.141592653589793238462643",
        "\"18446744073709551616\"", "{\"a\":[1e999,{\"b\":12345678901234567890123}],\"c\":\"x\"}"})
    EXPECT_EQ(dump_exact(parse_exact(text)), text);
  EXPECT_EQ(dump_exact(parse_exact("{\"a\": [1, 2], \"b\": {}}"), true), "{\"a\": [1, 2], \"b\": {}}");
  // What a double holds is an ordinary number, also where it is written long.
  EXPECT_TRUE(parse_exact("0.10000000000000000000").is_number_float());
  EXPECT_TRUE(parse_exact("1000000000000000000000.0").is_number_float());
  EXPECT_TRUE(number_text(parse_exact("18446744073709551615")));
}

TEST(ExactJson, NearestNumbersAreOfTheUsualTypes) {
  const auto nearest =
      with_nearest_numbers(parse_exact("[18446744073709551615, 1e30, 1e400, -1e400, {\"a\": 1e-400}]"));
  EXPECT_EQ(nearest[0], 18446744073709551615ULL);
  EXPECT_EQ(nearest[1], 1e30);
  EXPECT_EQ(nearest[2], std::numeric_limits<double>::max());
  EXPECT_EQ(nearest[3], -std::numeric_limits<double>::max());
  EXPECT_EQ(nearest[4]["a"], 0.0);
}

TEST(ExactJson, HalvesOfPairsBecomeReplacementCharacters) {
  const std::string half = "\xEF\xBF\xBD";
  EXPECT_EQ(parse_exact(R"("cut \ud83d")"), "cut " + half);
  EXPECT_EQ(parse_exact(R"("\ude00x")"), half + "x");
  EXPECT_EQ(parse_exact(R"("\ud83d\ud83d\ude00")"), half + "\xF0\x9F\x98\x80");
  EXPECT_EQ(parse_exact(R"("\uD83D\uDE00")"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(parse_exact(R"("\\ud83d")"), "\\ud83d");
  EXPECT_EQ(parse_exact(R"({"\udfff": 1})"), nlohmann::ordered_json({{half, 1}}));
  EXPECT_EQ(parse_exact(R"("\ue000\ud7ff")"), "\xEE\x80\x80\xED\x9F\xBF");
}

TEST(ExactJson, WhatIsNoJsonStaysNone) {
  for (const char* text :
       {"", "1e999x", "01e999", "1.e999", "-", "1e", "1e400-5", "99999999999999999999x", "\"\\ud83",
        "\"\\ud83d", "\"\\u12\"", "+1e400", "[1e400", "--1e400", "1e+", ".1e400"})
    EXPECT_THROW(parse_exact(text), nlohmann::json::exception) << text;
}

}  // namespace
}  // namespace sluice::text
