// Types of arguments out of tools' schemas, and values by them.
#include "text/tool_types.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "text/json_text.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

TEST(ToolTypes, ReadsSchemas) {
  const Json list = Json::parse(R"([{"name": "f", "parameters": {"properties": {
    "loop": {"$ref": "#/properties/loop"}, "mutual": {"anyOf": [{"$ref": "#/properties/mutual"}, {"type": "null"}]},
    "coded": {"$ref": "#/$defs/a~1b%20c"}, "far": {"$ref": "other.json#/x"}, "bad": {"$ref": "#x"},
    "odd": {"type": "any"}, "whole": {"enum": [2]}, "list": {"type": ["integer", "null", 5]}, "yes": true,
    "empty_nullable": {"nullable": true}}, "$defs": {"a/b c": {"type": "array"}}}}])");
  const ToolTypes types(list);
  const auto of = [&](std::string_view key) { return types.types("f", key); };
  EXPECT_EQ(of("loop"), 0);
  EXPECT_EQ(of("mutual"), kNull);
  EXPECT_EQ(of("coded"), kArray);
  EXPECT_EQ(of("far"), 0);
  EXPECT_EQ(of("bad"), 0);
  EXPECT_EQ(of("odd"), kOtherType);
  EXPECT_EQ(of("whole"), kInteger | kNumber);
  EXPECT_EQ(of("list"), kInteger | kNull);
  EXPECT_EQ(of("yes"), 0);
  EXPECT_EQ(of("empty_nullable"), 0);
  EXPECT_TRUE(ToolTypes(Json()).empty());
  EXPECT_THROW((void)ToolTypes(Json::object()), Error);
  EXPECT_THROW(ToolTypes(Json::parse("[{\"type\": \"function\"}]")), Error);
}

TEST(ToolTypes, ValuesAreStrictJson) {
  using namespace std::string_literals;
  EXPECT_EQ(typed_value(" 2.0 ", kInteger), "2.0");
  EXPECT_EQ(typed_value("1e400", kNumber), "\"1e400\"");
  for (const std::string& text : {"5\0x"s,
                                  "\xEF\xBB\xBF"
                                  "5"s,
                                  "+1"s, "007"s, "NaN"s, "1 2"s, "1."s, ""s, "-"s})
    EXPECT_EQ(typed_value(text, kNumber | kNull), json_quote(text)) << text;
  EXPECT_EQ(typed_value("\v[1 , {\"a b\" : \" \"}]\f", kArray), "[1,{\"a b\":\" \"}]");
  EXPECT_EQ(typed_value(repeated("[", 1000000), kArray).size(), 1000002u);
  EXPECT_EQ(typed_value(repeated("[", 256) + repeated("]", 256), kArray).front(), '[');
  EXPECT_EQ(typed_value(repeated("[", 257) + repeated("]", 257), kArray).front(), '"');
}

TEST(ToolTypes, FindsArgumentsWhereverASchemaHasThem) {
  const Json list = Json::parse(R"([{"name": "f", "parameters": {
    "$ref": "#/$defs/base", "properties": {"own": {"type": "integer"}, "both": {"type": ["integer", "string"]}},
    "patternProperties": {"^x-": {"type": "boolean"}, "(": {"type": "null"}, "^(a+)+$": {"type": "array"}},
    "allOf": [{"properties": {"all": {"type": "array"}, "both": {"type": "integer"}}},
              {"anyOf": [{"properties": {"deep": {"type": "object"}}}, {"properties": {"deep": {"type": "null"}}}]}],
    "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#"}],
    "if": {}, "then": {"properties": {"later": {"type": "number"}}},
    "additionalProperties": {"type": "number"},
    "$defs": {"base": {"properties": {"based": {"allOf": [{"$ref": "#/$defs/flag"}, {"description": "d"}]}}},
              "one": {"properties": {"one": {"properties": {"a": {}}}}}, "flag": {"type": "boolean"}}}},
    {"name": "implied", "parameters": {"properties": {"list": {"items": {}}, "text": {"pattern": "a"},
      "number": {"minimum": 1}, "object": {"required": ["a"]}, "nothing": {"description": "d"}}}}])");
  const ToolTypes types(list);
  const auto of = [&](std::string_view key) { return types.types("f", key); };
  EXPECT_EQ(of("own"), kInteger);
  EXPECT_EQ(of("both"), kInteger);
  EXPECT_EQ(of("based") & kBoolean, kBoolean);
  EXPECT_EQ(of("x-flag"), kBoolean);
  EXPECT_EQ(types.types("implied", "list"), kArray);
  EXPECT_EQ(types.types("implied", "text"), kString);
  EXPECT_EQ(types.types("implied", "number"), kNumber);
  EXPECT_EQ(types.types("implied", "object"), kObject);
  EXPECT_EQ(types.types("implied", "nothing"), 0);
  EXPECT_EQ(types.types("implied", "unknown"), 0);
  EXPECT_EQ(of("unknown"), kNumber);
  EXPECT_EQ(of(repeated("a", 5000) + "!"), kNumber);  // a pattern that takes for ever is passed over
  const ToolTypes loose(
      Json::parse(R"([{"name": "f", "parameters": {"allOf": [{"properties": {"a": {"type": "array"}}},
    {"anyOf": [{"properties": {"b": {"type": "object"}}}, {"properties": {"b": {"type": "null"}}}]}],
    "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#"}],
    "$defs": {"one": {"properties": {"c": {"type": "integer"}}}}}}])"));
  EXPECT_EQ(loose.types("f", "a"), kArray);
  EXPECT_EQ(loose.types("f", "b"), kObject | kNull);
  EXPECT_EQ(loose.types("f", "c"), kInteger);
}

TEST(ToolTypes, StringOrList) {
  const TypeSet either = kString | kArray;
  EXPECT_EQ(typed_value(" [\"a\", \"b\"]\n", either), "[\"a\",\"b\"]");
  EXPECT_EQ(typed_value("[a] b", either), "\"[a] b\"");
  EXPECT_EQ(typed_value("{\"a\": 1}", either), "\"{\\\"a\\\": 1}\"");
  EXPECT_EQ(typed_value("{\"a\": 1}", kString | kObject), "{\"a\":1}");
  EXPECT_EQ(typed_value("5", kString | kInteger), "\"5\"");
  // A value is handed on while it comes only where its end changes nothing.
  std::mt19937 random(3);
  const auto soup = [&] {
    std::string text;
    for (int i = 0; i < 6; ++i)
      text += std::array{" ", "null", "n", "[", "]", "{", "}", "a", "\n", "1", "\""}[random() % 11];
    return text;
  };
  for (int i = 0; i < 3000; ++i) {
    const auto types = static_cast<TypeSet>(random() % 128);
    const std::string text = soup();
    StringText string(types);
    bool certain = false;
    for (size_t length = 0; length <= text.size(); ++length) {
      const bool now = string.is_string(std::string_view(text).substr(0, length));
      ASSERT_TRUE(now || !certain) << text;
      certain = now;
    }
    if (certain) {
      ASSERT_EQ(typed_value(text, types), json_quote(text)) << text << " " << int{types};
    }
  }
}

}  // namespace
}  // namespace sluice::text
