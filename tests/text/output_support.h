// What the tests of output parsers share: tools, results as JSON, every chunking, texts at random.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace sluice::text {

using Json = nlohmann::ordered_json;

inline Json to_json(const ParsedOutput& output) {
  Json calls = Json::array();
  for (const ToolCall& call : output.tool_calls) {
    if (!call.whole) continue;
    calls.push_back({{"name", call.name}, {"arguments", Json::parse(call.arguments)}});
  }
  return {{"reasoning_content", output.reasoning_content},
          {"content", output.content},
          {"tool_calls", calls},
          {"incomplete", output.incomplete}};
}

/// The result as plain JSON, where the order of keys does not matter.
inline nlohmann::json parse(std::string_view format, const Json& tools, bool thinking, std::string_view text,
                            size_t chunk = 0) {
  const ParsedOutput output = parse_output(output_format(format), tools, thinking, text, chunk);
  return nlohmann::json::parse(to_json(output).dump());
}

inline const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"},
      "o": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "a": {"type": ["array", "object"]},
      "e": {"enum": [1, true]}, "r": {"$ref": "#/$defs/r", "nullable": true}, "any": {}},
      "$defs": {"r": {"type": "boolean"}}}}}])");
  return list;
}

/// Parses at once and in chunks of 1 to 17 bytes; all must agree.
inline nlohmann::json parse_all_ways(std::string_view format, const Json& tool_list, bool thinking,
                                     std::string_view text) {
  nlohmann::json whole = parse(format, tool_list, thinking, text);
  for (size_t chunk = 1; chunk <= 17; ++chunk)
    EXPECT_EQ(parse(format, tool_list, thinking, text, chunk), whole)
        << "chunks of " << chunk << ": " << text;
  return whole;
}

inline nlohmann::json expected(std::string_view reasoning, std::string_view content,
                               const std::vector<nlohmann::json>& calls = {}, bool incomplete = false) {
  return {{"reasoning_content", reasoning},
          {"content", content},
          {"tool_calls", calls},
          {"incomplete", incomplete}};
}

inline nlohmann::json call(std::string_view name,
                           const nlohmann::json& arguments = nlohmann::json::object()) {
  return {{"name", name}, {"arguments", arguments}};
}

/// Texts of tags, pieces of tags and values, put together at random.
inline std::string soup(std::mt19937& random, const std::vector<std::string>& pieces, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    std::string piece = pieces[random() % pieces.size()];
    if (random() % 12 == 0) piece.resize(random() % (piece.size() + 1));
    text += piece;
  }
  return text;
}

/// The calls as they were told: name, arguments as text, "cut" where a call is not whole.
inline std::vector<std::string> told(std::string_view format, std::string_view text, bool turn_ended) {
  std::vector<std::string> out, in_pieces;
  for (const size_t chunk : {0, 1, 2, 7}) {
    std::vector<std::string>& calls = chunk == 0 ? out : in_pieces;
    calls.clear();
    const ParsedOutput output = parse_output(output_format(format), tools(), false, text, chunk, turn_ended);
    for (const ToolCall& call : output.tool_calls)
      calls.push_back(call.name + call.arguments + (call.whole ? "" : " cut"));
    if (output.incomplete) calls.emplace_back("incomplete");
    if (chunk != 0) {
      EXPECT_EQ(in_pieces, out) << text;
    }
  }
  return out;
}

inline const std::vector<std::string> kQwenPieces = {
    "<tool_call>",
    "<tool_call>\n<function=f>\n",
    "<function=f>",
    "<function=",
    "ping",
    "f",
    ">",
    "<parameter=s>\n",
    "\n<parameter=n>",
    "<parameter=",
    "</parameter>\n",
    "\n</parameter>",
    "</function>",
    "</function>\n</tool_call>",
    "</tool_call>",
    "</think>",
    "<think>",
    " ",
    "\n",
    "5",
    "null",
    " True ",
    "[1, 2]",
    "a",
    "<",
    "x y",
    "é",
    "nope>",
    "<function=nope>\n",
    "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    "<function=ping>\n</function>",
    "<parameter=o>\n7\n</parameter>\n",
    "<parameter=any>\nvalue\n</parameter>\n</function>\n"};

}  // namespace sluice::text
