// Input that is nested without end, in every reader of this room: an error or an answer, on the stack of a
// small thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/constraint_support.h"
#include "text/exact_json.h"
#include "text/json_stream.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/support.h"
#include "text/tool_types.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr size_t kMany = 100'000;

std::string times(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

/// Runs on a thread with a stack of 1 MB (with sanitizers, whose frames are larger, 8 MB).
void on_a_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, static_cast<size_t>(kSlowdown > 1 ? 8 : 1) << 20);
  pthread_t thread;
  const auto run = [](void* what) -> void* {
    (*static_cast<const std::function<void()>*>(what))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string made(const std::function<std::unique_ptr<TokenConstraint>()>& make) {
  try {
    make();
    return "taken";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string schema(const Json& json) {
  return made([&] { return json_schema_constraint(json, json_model().place()); });
}

std::string tool(const Json& parameters) {
  const Json tools = {{{"name", "f"}, {"parameters", parameters}}};
  return made([&] {
    return tool_call_constraint(json_model().place(&output_format("glm47")),
                                {CallRule::When::Required, &tools, "", true});
  });
}

/// A schema within schemas, `depth` of them.
Json nested(size_t depth, const std::function<Json(Json)>& around) {
  Json json = {{"type", "string"}};
  for (size_t i = 0; i < depth; ++i) json = around(std::move(json));
  return json;
}

TEST(Depth, OfSchemas) {
  const std::function<Json(Json)> ways[] = {
      [](Json inner) {
        return Json{{"type", "array"}, {"items", std::move(inner)}};
      },
      [](Json inner) {
        return Json{{"type", "array"}, {"prefixItems", Json::array({std::move(inner)})}};
      },
      [](Json inner) {
        return Json{{"type", "object"}, {"properties", {{"a", std::move(inner)}}}};
      },
      [](Json inner) {
        return Json{{"type", "object"}, {"additionalProperties", std::move(inner)}};
      },
      [](Json inner) {
        return Json{{"type", "object"}, {"patternProperties", {{"^x", std::move(inner)}}}};
      },
      [](Json inner) {
        return Json{{"type", "object"}, {"propertyNames", std::move(inner)}};
      },
      [](Json inner) {
        return Json{{"anyOf", Json::array({std::move(inner), {{"type", "null"}}})}};
      },
      [](Json inner) {
        return Json{{"oneOf", Json::array({std::move(inner), {{"type", "null"}}})}};
      },
      [](Json inner) {
        return Json{{"allOf", Json::array({std::move(inner)})}};
      },
      [](Json inner) {
        return Json{{"not", std::move(inner)}};
      },
      [](Json inner) {
        return Json{{"enum", Json::array({std::move(inner)})}};
      },
      [](Json inner) {
        return Json{{"const", {{"a", std::move(inner)}}}};
      },
      [](Json inner) {
        return Json{{"default", Json::array({std::move(inner)})}};
      }};
  on_a_small_stack([&] {
    for (const auto& around : ways) {
      EXPECT_EQ(schema(nested(20, around)).find("nested"), std::string::npos) << nested(1, around);
      for (const size_t depth : {90, 120, 250}) {
        const Json json = nested(depth, around);
        EXPECT_NE(schema(json), "") << nested(1, around);
        EXPECT_NE(tool(json), "") << nested(1, around);
        EXPECT_NE(tool({{"type", "object"}, {"properties", {{"a", json}}}}), "") << nested(1, around);
      }
    }
    Json chain = {{"$ref", "#/$defs/r0"}};
    for (size_t i = 0; i < 5'000; ++i)
      chain["$defs"]["r" + std::to_string(i)] = {{"$ref", "#/$defs/r" + std::to_string(i + 1)}};
    chain["$defs"]["r5000"] = {{"type", "null"}};
    EXPECT_THAT(schema(chain), HasSubstr("nested too deep"));
    Json lists = {{"$ref", "#/$defs/r0"}};
    for (size_t i = 0; i < 5'000; ++i)
      lists["$defs"]["r" + std::to_string(i)] = {{"type", "array"},
                                                 {"items", {{"$ref", "#/$defs/r" + std::to_string(i + 1)}}}};
    lists["$defs"]["r5000"] = {{"type", "null"}};
    EXPECT_THAT(schema(lists), HasSubstr("nested too deep"));
  });
}

TEST(Depth, OfPatternsAndGrammars) {
  on_a_small_stack([] {
    const std::pair<std::string, std::string> pairs[] = {{"(", ")"},       {"(?:", ")?"}, {"(a|", ")*"},
                                                         {"(x", "){1,2}"}, {"(?=", ")"},  {"(?:(?=a)", ")?"},
                                                         {"(?!a)(", ")"},  {"[", "]"}};
    for (const auto& [open, close] : pairs) {
      for (const size_t depth : {size_t{90}, size_t{130}, kMany}) {
        const std::string text = times(open, depth) + "b" + times(close, depth);
        EXPECT_NE(schema({{"type", "string"}, {"pattern", text}}), "") << open;
        EXPECT_NE(schema({{"type", "string"}, {"pattern", times(open, depth)}}), "") << open;
      }
    }
    EXPECT_EQ(schema({{"type", "string"}, {"pattern", "^" + times("(a|", 90) + "b" + times(")", 90) + "$"}}),
              "taken");
    const std::pair<std::string, std::string> groups[] = {
        {"(", ")"}, {"( \"a\" | ", ")*"}, {"(\"b\" ", "){2}"}};
    for (const auto& [open, close] : groups) {
      for (const size_t depth : {size_t{90}, size_t{130}, kMany}) {
        const std::string text = "root ::= " + times(open, depth) + "\"x\"" + times(close, depth);
        EXPECT_NE(made([&] { return gbnf_constraint(text, json_model().place()); }), "") << open;
      }
    }
    EXPECT_EQ(made([&] {
                return gbnf_constraint("root ::= " + times("(", 90) + "\"x\"" + times(")", 90),
                                       json_model().place());
              }),
              "taken");
  });
}

TEST(Depth, OfJsonTexts) {
  on_a_small_stack([] {
    for (const auto& [open, close] :
         {std::pair<std::string, std::string>{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
      const std::string whole = times(open, kMany) + "1" + times(close, kMany);
      for (const std::string& text :
           {whole, times(open, kMany), times(open, 250) + "1" + times(close, 250)}) {
        const bool deep = text.size() > 10'000;
        if (deep) {
          EXPECT_FALSE(is_json(text)) << open;
        }
        JsonStream stream;
        std::string out;
        JsonStream::Status status = JsonStream::Status::More;
        for (const char c : text)
          if (status == JsonStream::Status::More) status = stream.read(c, out);
        if (deep) {
          EXPECT_EQ(status, JsonStream::Status::Failed) << open;
        }
        EXPECT_LE(json_closed(out).size(), text.size() + 600);
        for (const OutputFormat& format : output_formats()) {
          const Json tools = {{{"name", "f"}, {"parameters", {{"type", "object"}}}}};
          for (const std::string& answer :
               {text, "<tool_call>{\"name\": \"f\", \"arguments\": " + text + "}</tool_call>",
                "<tool_call>f<arg_key>a</arg_key><arg_value>" + text + "</arg_value></tool_call>",
                times("<tool_call>", kMany), times("<think>", kMany)})
            EXPECT_LE(parse_output(format, tools, false, answer).tool_calls.size(), 1u) << format.name;
        }
      }
      const Json value = parse_exact(times(open, 250) + "18446744073709551616" + times(close, 250));
      EXPECT_EQ(dump_exact(value), times(open, 250) + "18446744073709551616" + times(close, 250));
      EXPECT_TRUE(with_nearest_numbers(value).is_structured());
    }
  });
}

}  // namespace
}  // namespace sluice::text
