// The rows, and how one is chosen. The tags are the models' own, as their chat templates write them.
#include "text/output_format.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

constexpr OutputFormat kFormats[] = {
    // GLM-4.5, 4.6 (with newlines between the tags) and 4.7.
    {.name = "glm47",
     .evidence = "<arg_key>",
     .thinks = true,
     .calls = CallSyntax::Tagged,
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .tags = {.key_open = "<arg_key>",
              .key_close = "</arg_key>",
              .value_open = "<arg_value>",
              .value_close = "</arg_value>"}},
    // Qwen3-Coder, and models that took its calls over.
    {.name = "qwen3coder",
     .evidence = "<parameter=",
     .thinks = true,
     .calls = CallSyntax::Tagged,
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .tags = {.name_open = "<function=",
              .name_close = ">",
              .key_open = "<parameter=",
              .key_close = ">",
              .value_close = "</parameter>",
              .body_close = "</function>",
              .value_breaks = {"\n<parameter=", "</function>\n</tool_call>"},
              .own_lines = true}},
    {.name = "minimax",
     .evidence = "<minimax:tool_call>",
     .thinks = true,
     .calls = CallSyntax::Tagged,
     .call_open = "<minimax:tool_call>",
     .call_close = "</minimax:tool_call>",
     .tags = {.name_open = "<invoke name=\"",
              .name_close = "\">",
              .key_open = "<parameter name=\"",
              .key_close = "\">",
              .value_close = "</parameter>",
              .body_close = "</invoke>"}},
    // Functionary 3.1; Llama's models where a prompt asks for it.
    {.name = "functionary",
     .evidence = "<function=",
     .thinks = false,
     .calls = CallSyntax::Json,
     .call_open = "<function=",
     .call_close = "</function>",
     .separator = ">"},
    {.name = "kimi",
     .evidence = "<|tool_calls_section_begin|>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<|tool_call_begin|>",
     .call_close = "<|tool_call_end|>",
     .separator = "<|tool_call_argument_begin|>",
     .name_prefix = "functions.",
     .section_open = "<|tool_calls_section_begin|>",
     .section_close = "<|tool_calls_section_end|>",
     .other_section_open = "<|tool_call_section_begin|>",
     .other_section_close = "<|tool_call_section_end|>"},
    // DeepSeek V3, R1 (name and fenced JSON after the separator) and V3.1.
    {.name = "deepseek",
     .evidence = "<｜tool▁calls▁begin｜>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<｜tool▁call▁begin｜>",
     .call_close = "<｜tool▁call▁end｜>",
     .separator = "<｜tool▁sep｜>",
     .section_open = "<｜tool▁calls▁begin｜>",
     .section_close = "<｜tool▁calls▁end｜>"},
    // Apriel, which is Mistral's architecture, and MiniMax-M1.
    {.name = "tool_calls",
     .evidence = "</tool_calls>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<tool_calls>",
     .call_close = "</tool_calls>",
     .listed = true},
    {.name = "nemotron",
     .evidence = "<TOOLCALL>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<TOOLCALL>",
     .call_close = "</TOOLCALL>",
     .listed = true},
    // Hermes, Qwen, Youtu.
    {.name = "hermes",
     .evidence = "<tool_call>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<tool_call>",
     .call_close = "</tool_call>"},
    // Llama 3.1, 3.2 and 3.3; the tag stands before calls of what Meta calls built-in tools.
    {.name = "llama3",
     .evidence = "Respond in the format {\"name\": function name, \"parameters\":",
     .thinks = false,
     .calls = CallSyntax::Json,
     .section_open = "<|python_tag|>",
     .one_call_a_message = true},
    // GigaChat 3: calls are a turn of their own.
    {.name = "gigachat3",
     .evidence = "'role': 'function call'",
     .thinks = false,
     .calls = CallSyntax::Json,
     .call_open = "<|message_sep|>\n\nfunction call<|role_sep|>\n",
     .section_close = "<|message_sep|>",
     .one_call_a_message = true},
    {.name = "gigachat3.1",
     .evidence = "<|function_call|>",
     .thinks = false,
     .calls = CallSyntax::Json,
     .call_open = "<|function_call|>",
     .section_close = "<|message_sep|>",
     .one_call_a_message = true},
    // Mistral from Small 3.2 and Magistral on, Mistral-Small-4 among them; before, with an id.
    {.name = "mistral",
     .evidence = "[ARGS]",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "[TOOL_CALLS]",
     .separator = "[ARGS]",
     .think_open = "[THINK]",
     .think_close = "[/THINK]",
     .bracket = '[',
     .id_tag = "[CALL_ID]"},
    // Mistral before: 7B-Instruct-v0.3, Mixtral, Nemo, Small to 3.1.
    {.name = "mistral_list",
     .evidence = "[TOOL_CALLS]",
     .thinks = false,
     .calls = CallSyntax::Json,
     .call_open = "[TOOL_CALLS]",
     .listed = true,
     .bracket = '['},
    // gpt-oss: OpenAI's harmony.
    {.name = "harmony",
     .evidence = "<|channel|>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_close = "<|call|>",
     .separator = "<|message|>",
     .name_prefix = "functions.",
     .one_call_a_message = true,
     .channels = true,
     .think_open = "<|channel|>analysis<|message|>",
     .think_close = "<|end|>",
     .answer_open = "<|start|>assistant<|channel|>final<|message|>"},
    // Templates that know no calls, or none of the above.
    {.name = "think",
     .evidence = "</think>",
     .thinks = true,
     .calls = CallSyntax::Json,
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .generic = true},
    {.name = "plain",
     .evidence = "",
     .thinks = false,
     .calls = CallSyntax::Json,
     .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .generic = true},
};

}  // namespace

std::span<const OutputFormat> output_formats() { return kFormats; }

const OutputFormat& output_format(std::string_view name) {
  std::string known;
  for (const OutputFormat& format : kFormats) {
    if (format.name == name) return format;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.name);
  }
  fail("unknown output format \"{}\" (known: {})", name, known);
}

const OutputFormat& output_format_of_template(std::string_view chat_template) {
  const OutputFormat* format = kFormats;
  while (chat_template.find(format->evidence) == std::string_view::npos) ++format;  // the last one fits all
  return *format;
}

bool ends_in_thinking(const OutputFormat& format, std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kSpace);
  return format.thinks && last != std::string_view::npos &&
         prompt.substr(0, last + 1).ends_with(format.think_open);
}

}  // namespace sluice::text
