// Structured output against python3-jsonschema: whatever random walks through the masks write is valid, and
// what is valid and written in the usual ways gets through the masks; masks against one token at a time.
#include "text/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/constraint_support.h"
#include "text/output_parser.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

struct Case {
  Json schema;
  std::vector<std::string> documents;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> out;
    for (const std::string& line : python_lines("schema_oracle.py", "generate 20261121 400")) {
      const Json row = Json::parse(line);
      out.push_back({row.at("schema"), row.at("documents").get<std::vector<std::string>>()});
    }
    return out;
  }();
  return all;
}

TEST(Constraint, LetsValidDocumentsThrough) {
  size_t documents = 0;
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.schema.dump());
    const auto constraint = json_schema_constraint(one.schema, json_model().place());
    for (const std::string& text : one.documents) {
      EXPECT_TRUE(passes(json_model(), *constraint->clone(), text));
      ++documents;
    }
  }
  EXPECT_GE(cases().size(), 400u);
  EXPECT_GE(documents, 4000u);
}

TEST(Constraint, RandomWalksGiveValidDocuments) {
  std::mt19937 random(7);
  std::string rows;
  std::vector<std::string> texts;
  size_t walks = 0;
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.schema.dump());
    const auto constraint = json_schema_constraint(one.schema, json_model().place());
    for (int i = 0; i < 4; ++i) {
      ++walks;
      const Walk walk = random_walk(json_model(), *constraint->clone(), random);
      if (!walk.ended) continue;
      rows += Json{{"schema", one.schema}, {"text", walk.text}}.dump() + "\n";
      texts.push_back(one.schema.dump() + "\n" + walk.text);
    }
  }
  EXPECT_GE(texts.size(), walks * 95 / 100);
  const TemporaryFile file(rows);
  const std::vector<std::string> verdicts = python_lines("schema_oracle.py", "validate " + file.path());
  ASSERT_EQ(verdicts.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(verdicts[i], "ok") << texts[i];
}

TEST(Constraint, MasksAreWhatEachTokenAloneSays) {
  std::mt19937 random(3);
  for (size_t i = 0; i < cases().size(); i += 4) {
    SCOPED_TRACE(cases()[i].schema.dump());
    const auto constraint = json_schema_constraint(cases()[i].schema, json_model().place());
    std::vector<uint32_t> bits = json_model().words();
    std::string text;
    for (int step = 0; step < 12; ++step) {
      expect_exact_mask(json_model(), *constraint, text);
      std::vector<int32_t> choices;
      constraint->allowed(bits);
      for (int32_t token = 0; token < json_model().tokenizer.size(); ++token)
        if (has(bits, token) && !json_model().tokenizer.ends_generation(token)) choices.push_back(token);
      if (choices.empty()) break;
      const int32_t token = choices[random() % choices.size()];
      ASSERT_TRUE(constraint->accept(token));
      text += json_model().tokenizer.bytes(token, true);
    }
  }
}

TEST(Constraint, AnyObject) {
  const auto constraint = json_object_constraint(json_model().place());
  for (const char* text :
       {"{}", "{ }", R"({"a": [1, {"b": null}], "": "\ud83d\ude00"})", "{\n  \"a\": true\n}"})
    EXPECT_TRUE(passes(json_model(), *constraint->clone(), text)) << text;
  for (const char* text : {"[]", "1", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "{} ", "{\"a\":1,}",
                           "{\"a\":1e999}", "\n{}"})
    EXPECT_FALSE(passes(json_model(), *constraint->clone(), text)) << text;
}

TEST(Constraint, RefusesWhatItCannotKeepByNameAndPath) {
  const std::vector<std::pair<const char*, const char*>> schemas = {
      {R"j({"type": "strin"})j", "$.type"},
      {R"j({"not": {"minimum": 1}})j", "$.not: this keyword is not supported"},
      {R"j({"not": {"type": "integer"}})j", "$.not: this keyword is not supported"},
      {R"j({"properties": {"a": {"if": {}}}})j", "$.properties.a.if: this keyword is not supported"},
      {R"j({"contains": {}})j", "$.contains"},
      {R"j({"dependentRequired": {}})j", "$.dependentRequired"},
      {R"j({"dependentSchemas": {}})j", "$.dependentSchemas"},
      {R"j({"dependencies": {}})j", "$.dependencies"},
      {R"j({"unevaluatedProperties": true})j", "$.unevaluatedProperties"},
      {R"j({"unevaluatedItems": false})j", "$.unevaluatedItems"},
      {R"j({"minContains": 1})j", "$.minContains"},
      {R"j({"maxContains": 1})j", "$.maxContains"},
      {R"j({"then": {}})j", "$.then"},
      {R"j({"else": {}})j", "$.else"},
      {R"j({"$dynamicRef": "#"})j", "refers to itself"},
      {R"j({"$ref": "#/$defs/a"})j", "$.$ref: points to nothing: #/$defs/a"},
      {R"j({"$ref": "https://example.org/a"})j", "$.$ref: only references into the schema itself"},
      {R"j({"$ref": "#"})j", "refers to itself"},
      {R"j({"anyOf": [{"$ref": "#"}, {"type": "null"}]})j", "refers to itself"},
      {R"j({"allOf": [{"$ref": "#"}]})j", "refers to itself"},
      {R"j({"type": "string", "pattern": "(a)\\1"})j", "$.pattern: \\1 is not supported"},
      {R"j({"type": "string", "pattern": "a^"})j", "nothing can match"},
      {R"j({"type": "string", "pattern": "(x(?=a))+"})j", "$.pattern: a lookahead within a repeated group"},
      {R"j({"type": "string", "pattern": "(?<=a)b"})j", "$.pattern: lookbehind"},
      {R"j({"oneOf": [{"type": "string"}, {"minLength": 3}]})j",
       "$.oneOf: alternatives 0 and 1 may both hold"},
      {R"j({"type": "number", "multipleOf": 0.123456789})j", "$.multipleOf"},
      {R"j({"items": {"uniqueItems": true}})j", "$.items.uniqueItems"},
      {R"j({"propertyNames": 1})j", "$.propertyNames"},
      {R"j({"type": "object", "additionalProperties": true, "minProperties": 2})j", "$.minProperties"},
      {R"j({"minLength": -1})j", "$.minLength: expected a whole number"},
      {R"j({"maximum": true})j", "$.maximum: expected a number"},
      {R"j({"enum": []})j", "$.enum"},
      {R"j({"required": "a"})j", "$.required"},
      {R"j({"properties": []})j", "$.properties"},
      {R"j({"anyOf": []})j", "$.anyOf"},
      {R"j({"items": 3})j", "$.items: expected a schema"},
      {R"j(false)j", "nothing can match"},
      {R"j({"type": "string", "minLength": 3, "maxLength": 2})j", "nothing can match"},
      {R"j({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})j", "nothing can match"},
      {R"j({"type": "string", "pattern": "((((a{1,900}){1,900}){1,900}){1,900})"})j", "too complex"},
      {R"j("x")j", "expected a schema"},
  };
  for (const auto& [schema, message] : schemas) {
    try {
      json_schema_constraint(Json::parse(schema), json_model().place(), {}, true);
      ADD_FAILURE() << schema << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << schema;
    }
  }
}

/// The tools of a request.
const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type": "function", "function": {"name": "ping"}},
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
      "unit": {"enum": ["C", "F"]}, "when": {"type": ["string", "null"], "format": "date"},
      "tags": {"type": "array", "items": {"type": "string"}}, "o": {"$ref": "#/$defs/o"}},
      "required": ["city", "days"], "$defs": {"o": {"type": "object", "properties": {"k": {"type": "number"}}}}}}}])");
  return list;
}

CallRule required_calls(std::string only = "", bool parallel = true) {
  return {CallRule::When::Required, &tools(), std::move(only), parallel};
}

/// With a token that ends an argument as Qwen3-Coder writes it.
const Model& coder_model() {
  static const Model model([] {
    ToyVocab vocab = json_vocab();
    vocab.add("\n</parameter>", TokenType::UserDefined);
    return vocab;
  }()
                               .vocab());
  return model;
}

class ToolCalls : public testing::TestWithParam<const char*> {};

TEST_P(ToolCalls, WalksGiveCallsThatTheParserReadsAndTheSchemaAllows) {
  std::mt19937 random(11);
  const OutputFormat& format = output_format(GetParam());
  const Model& model = format.tags.value_close == "</parameter>" ? coder_model() : json_model();
  std::string rows;
  int calls = 0;
  for (const bool thinking : {false, true}) {
    const auto constraint = tool_call_constraint(model.place(&format, thinking), required_calls());
    for (int i = 0; i < 60; ++i) {
      const Walk walk = random_walk(model, *constraint->clone(), random, 80, "\n</parameter>");
      if (!walk.ended) continue;
      const ParsedOutput output = parse_output(format, tools(), thinking, walk.text);
      EXPECT_EQ(output.content, "") << walk.text;
      EXPECT_GE(output.tool_calls.size(), 1u) << walk.text;
      for (const ToolCall& call : output.tool_calls) {
        ++calls;
        ASSERT_TRUE(call.name == "ping" || call.name == "weather") << walk.text;
        const Json schema =
            call.name == "ping" ? Json::parse(R"({"type": "object"})") : tools()[1]["function"]["parameters"];
        rows += Json{{"schema", schema}, {"text", call.arguments}}.dump() + "\n";
      }
    }
  }
  EXPECT_GE(calls, 60);
  const TemporaryFile file(rows);
  const auto verdicts = python_lines("schema_oracle.py", "validate " + file.path());
  EXPECT_EQ(verdicts.size(), static_cast<size_t>(calls));
  for (size_t i = 0; i < verdicts.size(); ++i) EXPECT_EQ(verdicts[i], "ok") << i << "\n" << rows;
}
INSTANTIATE_TEST_SUITE_P(Formats, ToolCalls,
                         testing::Values("glm47", "kimi", "deepseek", "hermes", "qwen3coder", "tool_calls",
                                         "mistral_list", "nemotron", "minimax", "functionary"));

TEST(Constraint, CallsAsModelsWriteThem) {
  const auto allowed = [](const char* format, const CallRule& rule, const std::string& text,
                          bool thinking = false) {
    const auto constraint = tool_call_constraint(json_model().place(&output_format(format), thinking), rule);
    return passes(json_model(), *constraint, text, true);
  };
  const std::string glm =
      "<tool_call>weather<arg_key>city</arg_key><arg_value>\"<b>\" & so\non</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>";
  EXPECT_TRUE(allowed("glm47", required_calls(), glm));
  EXPECT_TRUE(allowed("glm47", required_calls(), glm + "\n" + glm));
  EXPECT_TRUE(allowed("glm47", required_calls(), "I wonder.</think>\n" + glm, true));
  EXPECT_TRUE(allowed(
      "glm47", required_calls(),
      "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n<arg_key>days</arg_key>\n"
      "<arg_value>14</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", "
      "\"b\"]</arg_value>\n</tool_call>"));
  EXPECT_TRUE(allowed("glm47", required_calls(), "<tool_call>ping</tool_call>"));
  EXPECT_FALSE(allowed("glm47", required_calls("", false), glm + glm));
  EXPECT_FALSE(allowed("glm47", required_calls("weather"), "<tool_call>ping</tool_call>"));
  EXPECT_FALSE(allowed("glm47", required_calls(), "Sure! " + glm));
  EXPECT_FALSE(allowed("glm47", required_calls(),
                       "<tool_call>weather<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>"));
  EXPECT_FALSE(allowed("glm47", required_calls(), "<tool_call>pong</tool_call>"));
  EXPECT_FALSE(allowed("glm47", required_calls(), glm, true));  // still thinking
  EXPECT_FALSE(allowed("glm47", required_calls(),
                       "Hm, <tool_call>ping</tool_call></think><tool_call>ping</tool_call>", true));
  EXPECT_TRUE(allowed(
      "hermes", required_calls(),
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"x\", \"days\": 1}}\n</tool_call>"));
  EXPECT_TRUE(
      allowed("kimi", required_calls(),
              "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
              "{\"city\": \"x\", \"days\": 1}<|tool_call_end|><|tool_calls_section_end|>"));
  EXPECT_TRUE(
      allowed("deepseek", required_calls(),
              "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```"
              "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
}

TEST(Constraint, CallsOfQwen3Coder) {
  const auto allowed = [](const CallRule& rule, const std::string& text, bool thinking = false) {
    const auto constraint =
        tool_call_constraint(json_model().place(&output_format("qwen3coder"), thinking), rule);
    return passes(json_model(), *constraint, text, true);
  };
  const auto call = [](const std::string& city) {
    return "<tool_call>\n<function=weather>\n<parameter=city>\n" + city +
           "\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
  };
  EXPECT_TRUE(allowed(required_calls(), call("Bern\n\n<b>&\"</function>")));
  EXPECT_TRUE(allowed(required_calls(), call("") + "\n" + call("x")));
  EXPECT_TRUE(allowed(required_calls(), "<tool_call><function=ping></function></tool_call>"));
  EXPECT_TRUE(allowed(required_calls(), "I wonder.</think>\n\n" + call("x"), true));
  EXPECT_FALSE(allowed(required_calls(), call("x\n<parameter=days>")));
  EXPECT_FALSE(allowed(required_calls(), call("x</function>\n</tool_call>")));
  EXPECT_FALSE(allowed(required_calls(), "Hm, <function=ping></think>" + call("x"), true));
  EXPECT_FALSE(allowed(required_calls(), "<tool_call>\n<function=weather>\n</function>\n</tool_call>"));
  EXPECT_FALSE(allowed(required_calls("ping"), call("x")));
  EXPECT_FALSE(allowed(required_calls("", false), call("x") + call("x")));
}

TEST(Constraint, CallsInPlaceOfContent) {
  const CallRule rule{CallRule::When::Instead, &tools(), "", true};
  const auto constraint = json_schema_constraint(Json::parse(R"({"type": "integer"})"),
                                                 json_model().place(&output_format("glm47")), rule);
  EXPECT_TRUE(passes(json_model(), *constraint->clone(), "42", true));
  EXPECT_TRUE(passes(json_model(), *constraint->clone(), "<tool_call>ping</tool_call>", true));
  EXPECT_FALSE(passes(json_model(), *constraint->clone(), "42<tool_call>ping</tool_call>", true));
}

TEST(Constraint, WhatCannotBeCalledIsSaid) {
  const auto message = [](const char* format, const CallRule& rule) -> std::string {
    try {
      tool_call_constraint(json_model().place(&output_format(format)), rule);
      return "taken";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message("plain", required_calls()), "taken");  // the generic form
  EXPECT_THAT(message("glm47", required_calls("nothing")), HasSubstr("there is no tool \"nothing\""));
}

TEST(Constraint, BeginsBehindReasoning) {
  const auto constraint = json_schema_constraint(Json::parse(R"({"type": "boolean"})"),
                                                 json_model().place(&output_format("glm47"), true));
  const Tokenizer& tokenizer = json_model().tokenizer;
  std::vector<uint32_t> bits = json_model().words();
  for (const int32_t token : tokenizer.encode("Let me see: {\"a\": 水", false)) {
    constraint->allowed(bits);
    EXPECT_TRUE(has(bits, token));
    EXPECT_FALSE(has(bits, tokenizer.find("<|endoftext|>")));
    EXPECT_FALSE(has(bits, tokenizer.find("<|user|>")));
    EXPECT_FALSE(constraint->may_end());
    ASSERT_TRUE(constraint->accept(token));
  }
  EXPECT_FALSE(constraint->accept(tokenizer.find("<|user|>")));
  EXPECT_FALSE(constraint->accept(tokenizer.find("<arg_value>")));
  ASSERT_TRUE(constraint->accept(tokenizer.find("</think>")));
  EXPECT_TRUE(passes(json_model(), *constraint, "\ntrue"));
  constraint->allowed(bits);
  for (int32_t token = 0; token < tokenizer.size(); ++token)
    EXPECT_EQ(has(bits, token), tokenizer.ends_generation(token)) << tokenizer.bytes(token, true);
}

TEST(Constraint, Gbnf) {
  const auto passes_gbnf = [](const char* grammar, const char* text) {
    return passes(json_model(), *gbnf_constraint(grammar, json_model().place()), text);
  };
  const char* chess =
      "# moves\nroot ::= (move \" \" move \"\\n\")+\nmove ::= (pawn | castle) [+#]?\n"
      "pawn ::= ([a-h] \"x\")? [a-h] [1-8]\n  | \"=\" [NBKQR]\ncastle ::= \"O-O\" \"-O\"?\n";
  EXPECT_TRUE(passes_gbnf(chess, "e4 exd5\nO-O-O a1+\n"));
  EXPECT_FALSE(passes_gbnf(chess, "e9 e5\n"));
  EXPECT_TRUE(passes_gbnf("root ::= [^\"\\\\]{2,3} .\n", "水é\n"));
  EXPECT_FALSE(passes_gbnf("root ::= [^\"\\\\]{2,3} .\n", "水\""));
  EXPECT_TRUE(passes_gbnf("root ::= \"(\" root? \")\"", "((()))"));
  EXPECT_FALSE(passes_gbnf("root ::= \"(\" root? \")\"", "((())"));
  EXPECT_TRUE(passes_gbnf("root ::= a b a\na ::= \"\" | \"x\"\nb ::= a* \"y\"", "xxyx"));
  EXPECT_TRUE(passes_gbnf("root ::= list\nlist ::= \"1\" (\",\" list)?", "1,1,1,1"));
  for (const auto& [grammar, message] : std::vector<std::pair<const char*, const char*>>{
           {"x ::= \"a\"", "there is no rule root"},
           {"root ::= y", "rule y is used but not defined"},
           {"root ::= \"a", "line 1: a literal"},
           {"root ::= root \"a\" | \"b\"", "begins with itself"},
           {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule root is defined twice"},
           {"root ::= (\"a\"", "a ( without )"},
           {"root ::= \"a\" root", "nothing can match"},
           {"root = 1", "expected ::="}}) {
    try {
      gbnf_constraint(grammar, json_model().place());
      ADD_FAILURE() << grammar << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message)) << grammar;
    }
  }
}

}  // namespace
}  // namespace sluice::text
