// Calls in messages for templates that cannot write them: as text, or one by one. Knows OpenAI's message form
// as ChatTemplate has put it right.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::text {

/// For templates without a form of calls: what tools there are and how to call them becomes part of the
/// system message (of the user's first one where templates have none), calls and their results become text,
/// as Hermes models have them (the generic formats read that).
void write_calls_as_text(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                         bool knows_system);

/// For templates that write calls and no tools: what tools there are, and how they are called, where a call
/// is written like this (call_shape). `call` stands in the second text alone.
struct ToolsText {
  std::string tools, how;
};
ToolsText describe_tools(const nlohmann::ordered_json& tools, std::string_view call);

/// For templates that write the first call of a message alone: a message with several calls becomes several,
/// each with its result behind it.
void split_calls(nlohmann::ordered_json& messages);

/// For templates that need every tool's description or parameters: an empty one where a client gave none.
/// Of others, null is the same as none.
void complete_tools(nlohmann::ordered_json& tools, bool needs_description, bool needs_parameters);

/// For templates that read schemas and fail with these: the tools with schemas of the few words that all
/// such templates know. A value has one type, properties and items are schemas, descriptions are texts.
nlohmann::ordered_json tools_in_plain_words(const nlohmann::ordered_json& tools);

}  // namespace sluice::text
