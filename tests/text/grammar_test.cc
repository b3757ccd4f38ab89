// Grammars from strangers: every place leads on, work and memory end where they may, what schemas say is kept
// or said to be left unbound.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "text/constraint_support.h"
#include "text/random_grammars.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// What a grammar's making says; "taken" when it says nothing. It may take no longer than its budget.
std::string made(const std::function<void()>& make) {
  std::string said = "taken";
  const double begin = thread_seconds();
  try {
    make();
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_LT(thread_seconds() - begin, 4 * kSlowdown) << said;
  return said;
}

std::string schema(const Json& json, bool strict = false) {
  return made([&] { json_schema_constraint(json, json_model().place(), {}, strict); });
}

std::string gbnf(const std::string& text) {
  return made([&] { gbnf_constraint(text, json_model().place()); });
}

testing::AssertionResult takes(const Json& schema, const std::string& text) {
  return passes(json_model(), *json_schema_constraint(schema, json_model().place()), text);
}

/// Walks at random, with a liking for white space and for ends that are almost reached; each place must lead
/// on.
void expect_no_dead_end(const TokenConstraint& constraint, std::mt19937& random, const std::string& what) {
  const Model& model = json_model();
  std::vector<uint32_t> bits = model.words();
  for (int walk = 0; walk < 12; ++walk) {
    const auto follower = constraint.clone();
    std::string text;
    for (int step = 0; step < 120; ++step) {
      follower->allowed(bits);
      std::vector<int32_t> choices, spaces;
      for (int32_t token = 0; token < model.tokenizer.size(); ++token) {
        if (!has(bits, token) || model.tokenizer.ends_generation(token)) continue;
        choices.push_back(token);
        const std::string_view bytes = model.tokenizer.bytes(token, true);
        if (bytes.find_first_not_of(" \n\t,]}\"") == std::string_view::npos) spaces.push_back(token);
      }
      if (choices.empty()) {
        ASSERT_TRUE(follower->may_end()) << what << "\nleads nowhere behind: " << text;
        break;
      }
      const std::vector<int32_t>& from = !spaces.empty() && random() % 2 == 0 ? spaces : choices;
      const int32_t token = from[random() % from.size()];
      text += model.tokenizer.bytes(token, true);
      ASSERT_TRUE(follower->accept(token)) << what << "\n" << text;
    }
  }
}

TEST(Grammar, EveryPlaceOfASchemaLeadsOn) {
  RandomSchemas schemas(20261127);
  std::mt19937 random(1);
  int taken = 0;
  std::string rows;
  for (int i = 0; i < 400; ++i) {
    const Json json = schemas.make(2);
    std::unique_ptr<TokenConstraint> constraint;
    try {
      constraint = json_schema_constraint(json, json_model().place());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("nothing can match"), HasSubstr("inProperties")))
          << json;
      continue;
    }
    ++taken;
    expect_no_dead_end(*constraint, random, json.dump());
    if (HasFatalFailure()) return;
    const Walk walk = random_walk(json_model(), *constraint, random);
    if (walk.ended) rows += Json{{"schema", json}, {"text", walk.text}}.dump() + "\n";
  }
  EXPECT_GE(taken, 300);
  const TemporaryFile file(rows);
  const std::vector<std::string> verdicts = python_lines("schema_oracle.py", "validate " + file.path());
  EXPECT_GE(verdicts.size(), 200u);
  for (const std::string& verdict : verdicts) EXPECT_EQ(verdict, "ok");
}

TEST(Grammar, EveryPlaceOfAGrammarLeadsOn) {
  std::mt19937 random(5);
  int taken = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string grammar = random_gbnf(random);
    std::unique_ptr<TokenConstraint> constraint;
    try {
      constraint = gbnf_constraint(grammar, json_model().place());
    } catch (const Error&) {
      continue;
    }
    ++taken;
    expect_no_dead_end(*constraint, random, grammar);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(taken, 250);
}

TEST(Grammar, DepthHasAnEnd) {
  const auto times = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const char* ending : {"?", "*", "+", "?*+"})
    EXPECT_EQ(gbnf("root ::= \"a\"" + times(ending, 200'000)), "taken");
  EXPECT_THAT(gbnf("root ::= \"a\"" + times("{2}", 200'000)), HasSubstr("too complex"));
  EXPECT_EQ(gbnf("root ::= \"a\"" + times("{1,2}", 200)), "taken");
  EXPECT_THAT(gbnf("root ::= " + times("(", 100'000)), HasSubstr("nested too deep"));
  EXPECT_THAT(schema({{"type", "string"}, {"pattern", times("(", 100'000)}}), HasSubstr("nested too deep"));
  EXPECT_THAT(schema({{"type", "string"}, {"pattern", times("(?=a)", 100'000)}}),
              HasSubstr("too many lookaheads"));
  std::string rules = "root ::= r0\n";  // a chain of rules, each known after the next one
  for (int i = 0; i < 20'000; ++i) rules += fmt::format("r{} ::= \"a\"? r{}\n", i, i + 1);
  EXPECT_EQ(gbnf(rules + "r20000 ::= \"b\""), "taken");
}

TEST(Grammar, WorkAndMemoryEndBeforeTheBudgetDoes) {
  Json numbers = Json::array(), any_of = Json::array(), one_of = Json::array(), words = Json::array(),
       names = Json::array();
  for (int i = 0; i < 1'000'000; ++i) numbers.push_back(i);
  for (int i = 0; i < 100'000; ++i) any_of.push_back({{"type", "object"}, {"maxProperties", i}});
  for (int i = 0; i < 2'000; ++i) one_of.push_back({{"const", fmt::format("v{}", i)}, {"title", "x"}});
  for (int i = 0; i < 50'000; ++i) words.push_back(fmt::format("a longer word number {}", i));
  for (int i = 0; i < 9'000; ++i) names.push_back(fmt::format("name{}", i));
  EXPECT_THAT(schema({{"enum", numbers}}), testing::AnyOf("taken", HasSubstr("too complex")));
  EXPECT_THAT(schema({{"enum", Json::array({std::string(16'000'000, 'a')})}}), HasSubstr("too complex"));
  EXPECT_THAT(schema({{"anyOf", any_of}}), HasSubstr("too complex"));
  EXPECT_EQ(schema({{"oneOf", one_of}}), "taken");
  EXPECT_EQ(schema({{"enum", words}}), "taken");
  EXPECT_EQ(schema({{"allOf", Json::array({{{"enum", words}}, {{"enum", words}}})}}), "taken");
  EXPECT_THAT(schema({{"type", "object"}, {"required", names}, {"properties", Json::object()}}),
              testing::AnyOf("taken", HasSubstr("too complex")));
  std::string scattered;
  for (uint32_t c = 0x4E00; c < 0x4E00 + 20'000; c += 2)
    scattered += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                  static_cast<char>(0x80 | (c & 0x3F))};
  EXPECT_EQ(schema({{"type", "string"}, {"pattern", "^[" + scattered + "]+$"}}), "taken");
  EXPECT_EQ(gbnf("root ::= [" + scattered + "]+"), "taken");
  EXPECT_THAT(schema({{"type", "string"}, {"pattern", "(a|b)*a(a|b){60}$"}}), HasSubstr("too complex"));
}

TEST(Grammar, LengthsAreCounted) {
  const auto text = [](const Json& more) {
    Json out = {{"type", "string"}};
    out.update(more);
    return out;
  };
  for (const Json& one :
       {text({{"maxLength", 100'000}, {"minLength", 50'000}}),
        text({{"format", "email"}, {"maxLength", 320}}), text({{"format", "hostname"}, {"maxLength", 512}}),
        text({{"format", "uri"}, {"minLength", 1}, {"maxLength", 2083}}),
        text({{"pattern", "^https?://.+$"}, {"maxLength", 2048}}),
        text({{"pattern", "^.*\\S.*$"}, {"maxLength", 20'000}}),
        text({{"pattern", "^[A-Za-z0-9_-]{1,5000}$"}}),
        text({{"pattern", "^[A-Z][a-z ]{0,9000}!$"}, {"minLength", 3}})})
    EXPECT_EQ(schema(one), "taken") << one;
  EXPECT_TRUE(takes(text({{"pattern", "^https?://.+$"}, {"maxLength", 12}}), "\"http://a.com\""));
  EXPECT_FALSE(takes(text({{"pattern", "^https?://.+$"}, {"maxLength", 12}}), "\"https://a.com\""));
  EXPECT_TRUE(takes(text({{"pattern", "^[A-Z][a-z ]{0,900}!$"}, {"minLength", 4}}), "\"Abc!\""));
  EXPECT_FALSE(takes(text({{"pattern", "^[A-Z][a-z ]{0,900}!$"}, {"minLength", 5}}), "\"Abc!\""));
  EXPECT_TRUE(takes(text({{"pattern", "^(ab)+$"}, {"minLength", 3}, {"maxLength", 5}}), "\"abab\""));
  EXPECT_FALSE(takes(text({{"pattern", "^(ab)+$"}, {"minLength", 3}, {"maxLength", 5}}), "\"ab\""));
  EXPECT_EQ(schema(text({{"pattern", "^(ab)+$"}, {"minLength", 3}, {"maxLength", 3}})),
            "nothing can match it");
  const auto counted = gbnf_constraint("root ::= x{3,5000}\nx ::= [a-c] | \"dd\"", json_model().place());
  EXPECT_TRUE(passes(json_model(), *counted->clone(), "addb"));
  EXPECT_FALSE(passes(json_model(), *counted->clone(), "add"));
  const auto optional_parts = gbnf_constraint("root ::= x{3000} \"!\"\nx ::= [a-c]?", json_model().place());
  EXPECT_TRUE(passes(json_model(), *optional_parts->clone(), "ab!"));
}

TEST(Grammar, KeywordsThatCanBeKeptAreKept) {
  const auto object = [](Json more) {
    Json out = {{"type", "object"}};
    out.update(more);
    return out;
  };
  const Json names =
      object({{"propertyNames", {{"enum", {"a", "b"}}}}, {"additionalProperties", {{"type", "integer"}}}});
  EXPECT_TRUE(takes(names, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(takes(names, R"({"c": 1})"));
  const Json two = object({{"properties", {{"a", {{"type", "null"}}}, {"b", {{"type", "null"}}}}}});
  Json some = two, one = two;
  some["minProperties"] = 1;
  one["maxProperties"] = 1;
  EXPECT_FALSE(takes(some, "{}"));
  EXPECT_TRUE(takes(some, R"({"b": null})"));
  EXPECT_FALSE(takes(one, R"({"a": null, "b": null})"));
  const Json cents = {{"type", "number"}, {"multipleOf", 0.05}};
  EXPECT_TRUE(takes(cents, "-10.15"));
  EXPECT_TRUE(takes(cents, "7"));
  EXPECT_FALSE(takes(cents, "0.07"));
  const Json set = {{"type", "array"}, {"uniqueItems", true}, {"items", {{"enum", {"a", "b", "c"}}}}};
  EXPECT_TRUE(takes(set, R"(["c", "a"])"));
  EXPECT_FALSE(takes(set, R"(["a", "a"])"));
  const Json anchored =
      object({{"$defs",
               {{"A", {{"$anchor", "aa"}, {"type", "string"}}}, {"B", {{"$id", "urn:b"}, {"type", "null"}}}}},
              {"properties", {{"u", {{"$ref", "#aa"}}}, {"v", {{"$ref", "urn:b"}}}}}});
  EXPECT_TRUE(takes(anchored, R"({"u": "x", "v": null})"));
  EXPECT_FALSE(takes(anchored, R"({"u": 1})"));
  const auto matches = [](const char* pattern, const std::string& text) {
    return takes({{"type", "string"}, {"pattern", pattern}}, Json(text).dump());
  };
  const char* decimal = "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$";
  EXPECT_TRUE(matches(decimal, "-12.5"));
  EXPECT_FALSE(matches(decimal, "-."));
  EXPECT_TRUE(matches("^(?=.*[A-Z])(?=.*\\d).{4,}$", "abC1"));
  EXPECT_FALSE(matches("^(?=.*[A-Z])(?=.*\\d).{4,}$", "abc1"));
  EXPECT_TRUE(matches("^\\p{L}+$", "水é"));
  EXPECT_FALSE(matches("^\\p{L}+$", "é1"));
  EXPECT_TRUE(matches("\\bcat\\b", "a cat!"));
  EXPECT_FALSE(matches("\\bcat\\b", "concat"));
  EXPECT_TRUE(matches("(?i)^yes$", "YeS"));
  EXPECT_FALSE(matches("(?i)^[^y]$", "Y"));
  const char* duration = "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?)?)$";
  for (const char* right : {"P3W", "P1Y2D", "PT5M", "P1DT1H", "P2Y"}) EXPECT_TRUE(matches(duration, right));
  for (const char* wrong : {"P", "PT", "P1DT", "P1W2D", "3W"}) EXPECT_FALSE(matches(duration, wrong));
  EXPECT_TRUE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "b|z"));
  EXPECT_TRUE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "ab"));
  EXPECT_FALSE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "ba"));
  EXPECT_TRUE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "q"));
  EXPECT_TRUE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "yxq"));
  EXPECT_FALSE(matches("^(a|(?=.*z)b)[|)]?.$|^(?:(?!x)..)?q$", "xyq"));
  EXPECT_THAT(schema({{"type", "string"}, {"pattern", "^a(b(?=c))*$"}}),
              HasSubstr("within a repeated group is not supported (at character 3)"));
  EXPECT_TRUE(matches("(^$)|(^x\\n\"$)", ""));
  EXPECT_TRUE(matches("(^$)|(^x\\n\"$)", "x\n\""));
  const auto is_uri = [](const std::string& text) {
    return takes({{"type", "string"}, {"format", "uri"}}, Json(text).dump());
  };
  for (const char* uri : {"https://example.org/a/b?c=d&e=/?#f?/", "http://u:p@h:80", "mailto:a@b.c",
                          "urn:x:y", "file:///etc/hosts", "a:/", "s3://b//k", "x://h:/?", "data:,a%20b"})
    EXPECT_TRUE(is_uri(uri));
  for (const char* no :
       {"https://exam:le.org/", "http://a@b@c/", "1a:b", "a:b#c#d", "a:%2", "a:b c", "http://h:8a"})
    EXPECT_FALSE(is_uri(no)) << no;
  EXPECT_TRUE(takes({{"type", "number"}, {"minimum", -1.7976931348623157e308}}, "5"));
  EXPECT_TRUE(takes({{"type", "number"}, {"minimum", 1}, {"exclusiveMinimum", true}}, "1.5"));
  EXPECT_FALSE(takes({{"type", "number"}, {"minimum", 1}, {"exclusiveMinimum", true}}, "1"));
  for (const char* format : {"path", "password", "binary", "uuid4", "iri"})
    EXPECT_EQ(schema({{"type", "string"}, {"format", format}}), "taken");
  EXPECT_EQ(schema({{"type", "string"}, {"errorMessage", "x"}}, true), "taken");
  const Json not_text = object(
      {{"properties", {{"a", {{"not", {{"type", {"string", "null"}}}}}}, {"b", {{"not", Json::object()}}}}}});
  EXPECT_TRUE(takes(not_text, R"({"a": 1.5})"));
  EXPECT_FALSE(takes(not_text, R"({"a": "x"})"));
  EXPECT_FALSE(takes(not_text, R"({"b": 1})"));
  const Json both_names = {{"allOf",
                            {object({{"required", {"a"}}, {"properties", {{"a", true}}}}),
                             object({{"required", {"b", "a"}}, {"properties", {{"b", true}}}})}}};
  EXPECT_TRUE(takes(both_names, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(takes(both_names, R"({"b": 2})"));
  const Json free_set = {{"type", "array"}, {"uniqueItems", true}, {"items", {{"type", "string"}}}};
  EXPECT_EQ(schema(free_set), "taken");
  EXPECT_THAT(schema(free_set, true), HasSubstr("$.uniqueItems"));
}

TEST(Grammar, WhatIsWrongWithOneToolLeavesTheOthersBound) {
  const Json list = Json::parse(R"j([
    {"name": "good", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    {"name": "partly", "parameters": {"type": "object", "properties": {"a": {"not": {"minimum": 5}, "type": "integer"}}, "required": ["a"]}},
    {"name": "hopeless", "parameters": {"type": "object", "properties": {"s": {"type": "string", "pattern": "(a|b)*a(a|b){60}$"}}}},
    {"name": "no name", "parameters": {"type": "object"}}])j");
  for (const char* format : {"hermes", "glm47"}) {
    std::vector<std::string> notes;
    AnswerPlace place = json_model().place(&output_format(format));
    place.notes = &notes;
    const auto constraint = tool_call_constraint(place, {CallRule::When::Required, &list, "", true});
    const auto call = [&](const std::string& name, const std::string& key, const std::string& value) {
      const std::string text =
          std::string(format) == "hermes"
              ? fmt::format(R"(<tool_call>{{"name": "{}", "arguments": {{"{}": {}}}}}</tool_call>)", name,
                            key, value)
              : fmt::format("<tool_call>{}<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", name,
                            key, value);
      return passes(json_model(), *constraint->clone(), text, true);
    };
    EXPECT_TRUE(call("good", "n", "1")) << format;
    EXPECT_FALSE(call("good", "n", "true")) << format;
    EXPECT_TRUE(call("partly", "a", "1")) << format;
    EXPECT_FALSE(call("partly", "a", "null")) << format;
    EXPECT_TRUE(call("hopeless", "what", "\"ever\"")) << format;
    EXPECT_FALSE(call("no name", "x", "1")) << format;
    const auto said =
        testing::UnorderedElementsAre(HasSubstr("partly: $.properties.a.not"),
                                      HasSubstr("hopeless: too complex"), HasSubstr("\"no name\""));
    EXPECT_THAT(notes, said) << format;
  }
  Json many = Json::array();
  for (int i = 0; i < 120; ++i) {
    Json properties;
    for (int j = 0; j < 8; ++j)
      properties[fmt::format("p{}", j)] = {{"type", j % 3 == 0 ? "string" : "integer"},
                                           {"maxLength", 10'000}};
    many.push_back({{"name", fmt::format("tool_{}", i)},
                    {"parameters", {{"type", "object"}, {"properties", properties}}}});
  }
  for (const char* format : {"hermes", "glm47"}) {
    std::vector<std::string> notes;
    AnswerPlace place = json_model().place(&output_format(format));
    place.notes = &notes;
    EXPECT_EQ(made([&] {
                tool_call_constraint(place, {CallRule::When::Required, &many, "", true});
              }),
              "taken");
    EXPECT_THAT(notes, testing::IsEmpty()) << format;
  }
}

// Ten times as much takes about ten times as long and as much memory. Prints both.
TEST(Grammar, CostsGrowWithSizeAlone) {
  const auto object = [](int count) {
    Json properties;
    for (int i = 0; i < count; ++i)
      properties[fmt::format("property_{}", i)] = {{"type", i % 2 == 0 ? "string" : "integer"}};
    return Json{{"type", "object"}, {"properties", properties}};
  };
  const auto values = [](int count) {
    Json out = Json::array();
    for (int i = 0; i < count; ++i) out.push_back(fmt::format("value number {}", i));
    return Json{{"enum", out}};
  };
  const auto consts = [](int count) {
    Json out = Json::array();
    for (int i = 0; i < count; ++i) out.push_back({{"const", i}, {"title", "x"}});
    return Json{{"oneOf", out}};
  };
  const auto variants = [&](int count) {
    Json out = Json::array();
    for (int i = 0; i < count; ++i) {
      Json one = object(3);
      one["properties"]["kind"] = {{"const", fmt::format("kind {}", i)}};
      one["required"] = {"kind"};
      out.push_back(std::move(one));
    }
    return Json{{"oneOf", out}};
  };
  const auto length = [](int most) {
    return Json{{"type", "string"}, {"pattern", "^[a-z].*$"}, {"maxLength", most}};
  };
  const std::vector<std::tuple<const char*, std::function<Json(int)>, int>> kinds = {
      {"enum of texts", values, 1000},
      {"oneOf of const", consts, 300},
      {"oneOf of objects", variants, 20},
      {"optional properties", object, 300},
      {"maxLength beside a pattern", length, 1000}};
  for (const auto& [name, make, size] : kinds) {
    double seconds[2], bytes[2];
    for (const int i : {0, 1}) {
      const Json json = make(i == 0 ? size : 10 * size);
      const double begin = thread_seconds();
      const auto constraint = json_schema_constraint(json, json_model().place());
      seconds[i] = thread_seconds() - begin;
      bytes[i] = static_cast<double>(constraint->bytes());
      fmt::print("{} {}: {:.1f} ms, {:.0f} KB\n", name, i == 0 ? size : 10 * size, seconds[i] * 1e3,
                 bytes[i] / 1e3);
    }
    EXPECT_LT(seconds[1], 40 * seconds[0] + 0.2) << name;
    EXPECT_LT(bytes[1], 15 * bytes[0] + 3e6) << name;
  }
}

TEST(Grammar, NothingStandsBeforeWhatAGrammarSays) {
  for (const OutputFormat* format : {static_cast<const OutputFormat*>(nullptr), &output_format("glm47")}) {
    const auto grammar = gbnf_constraint("root ::= \"  x\\n\"", json_model().place(format));
    EXPECT_TRUE(passes(json_model(), *grammar->clone(), "  x\n"));
    EXPECT_FALSE(passes(json_model(), *grammar->clone(), "   x\n"));
    const auto value = json_schema_constraint({{"const", "x"}}, json_model().place(format));
    EXPECT_EQ(passes(json_model(), *value->clone(), "\n\"x\""), format != nullptr);
  }
}

}  // namespace
}  // namespace sluice::text
