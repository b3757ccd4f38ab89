// Any bytes as a model's output, in every format: chunks do not matter, what comes out is valid UTF-8 and
// JSON.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "text/json_stream.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/utf8.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

const nlohmann::ordered_json& tools() {
  static const auto list = nlohmann::ordered_json::parse(R"([
    {"function": {"name": "ping"}},
    {"function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "n": {"type": ["integer", "null"]}, "a": {"type": "array"}}}}}])");
  return list;
}

std::string described(const text::ParsedOutput& output) {
  std::string out = output.reasoning_content + "\n--\n" + output.content;
  for (const text::ToolCall& call : output.tool_calls)
    out += "\n--\n" + call.name + call.arguments + (call.whole ? "" : " cut");
  return out + (output.incomplete ? "\n--\nincomplete" : "");
}

void check_valid(const text::ParsedOutput& output) {
  for (const std::string* text : {&output.reasoning_content, &output.content}) {
    CHECK(text::utf8_valid_prefix(*text) == text->size());
    CHECK(text::trimmed(*text) == *text);
  }
  for (const text::ToolCall& call : output.tool_calls) {
    CHECK(!call.name.empty());
    CHECK(call.whole || output.incomplete);
    const std::string arguments = call.whole ? call.arguments : text::json_closed(call.arguments);
    CHECK(text::is_json(arguments) && arguments.front() == '{');
    CHECK(text::json_compact(arguments) == arguments);
  }
}

/// The answer in chunks of 1 to 8 bytes that the input itself chooses.
text::ParsedOutput parse_in_chunks(const text::OutputFormat& format, bool thinking, std::string_view input) {
  text::OutputParser parser(format, tools(), thinking);
  text::ParsedOutput output;
  uint32_t state = 1;
  for (size_t at = 0; at < input.size();) {
    state = state * 1664525 + 1013904223 + static_cast<uint8_t>(input[at]);
    const size_t length = std::min<size_t>(input.size() - at, 1 + (state >> 29));
    for (const text::OutputEvent& event : parser.push(input.substr(at, length))) {
      CHECK(text::utf8_valid_prefix(event.text) == event.text.size());
      output.add({event});
    }
    at += length;
  }
  output.add(parser.finish());
  output.incomplete = parser.incomplete();
  return output;
}

}  // namespace

/// The first byte chooses the format and whether the text starts in thinking; the rest is the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto formats = text::output_formats();
  const text::OutputFormat& format = formats[data[0] / 2 % formats.size()];
  const bool thinking = data[0] % 2 == 1;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const text::ParsedOutput whole = text::parse_output(format, tools(), thinking, input);
  check_valid(whole);
  const std::string expected = described(whole);
  CHECK(described(text::parse_output(format, tools(), thinking, input, 1)) == expected);
  CHECK(described(parse_in_chunks(format, thinking, input)) == expected);
  return 0;
}
