// How models mark reasoning and tool calls in what they write: a table, a row a format.
// Knows tags; how they are read is output_parser.h's business.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace sluice::text {

enum class CallSyntax : uint8_t {
  None,    ///< no calls
  Tagged,  ///< OPEN name (key value)* CLOSE, each between tags of its own
  Json,    ///< [OPEN] [name SEPARATOR] {...} [CLOSE]; without OPEN in place of the content. Without
           ///< SEPARATOR a list of objects may stand there, or one behind the other.
};

/// The tags within a call of CallSyntax::Tagged, in the order in which they stand there.
struct CallTags {
  std::string_view name_open, name_close;  ///< none: the name ends where no name can go on
  std::string_view key_open, key_close, value_open, value_close;
  std::string_view body_close;  ///< behind the last argument; the call's own closing tag may then lack
  /// Where a model leaves out a value's closing tag, what follows ends the value.
  std::array<std::string_view, 2> value_breaks;
  bool own_lines = false;  ///< a value stands on lines of its own: a newline at either end is none of it
};

inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";

/// One format. Tags begin with `bracket`; an empty one does not exist in the format.
struct OutputFormat {
  std::string_view name;
  std::string_view evidence;  ///< a chat template with this in it wants this format
  bool thinks;                ///< reasoning stands between think_open and think_close
  CallSyntax calls;
  std::string_view call_open, call_close;
  CallTags tags = {};            ///< of Tagged; models may begin a call with name_open at once
  std::string_view separator;    ///< of Json: after the name; empty: the object holds "name" and "arguments"
  std::string_view name_prefix;  ///< of Json: names are written PREFIX name ":" number
  std::string_view section_open, section_close;  ///< stand around a group of calls and mean nothing
  std::string_view other_section_open, other_section_close;  ///< what models slip into for them
  bool listed = false;              ///< of Json: the template writes [{...}, ...], be it one call
  bool one_call_a_message = false;  ///< the template writes no more
  bool generic = false;             ///< not the template's own form: call_messages.h asks for it
  /// An answer is messages, each with a header that ends in `separator`: its channel is reasoning
  /// ("analysis") or content, and one that is addressed to a tool ("to=") is a call with the arguments alone.
  bool channels = false;
  std::string_view think_open = kThinkOpen, think_close = kThinkClose;
  char bracket = '<';
  std::string_view id_tag = {};       ///< of Json: may stand before the separator, with an id behind it
  std::string_view answer_open = {};  ///< of channels: what stands between reasoning and content
};

/// All formats; where several fit a chat template, the first one is it.
std::span<const OutputFormat> output_formats();

/// The format of that name. Throws Error that lists the known names.
const OutputFormat& output_format(std::string_view name);

/// The format that a model with this chat template writes, by the tags in the template.
const OutputFormat& output_format_of_template(std::string_view chat_template);

/// Of channels.
inline constexpr std::string_view kChannelTag = "<|channel|>", kStartTag = "<|start|>";
inline constexpr std::string_view kFinalHeader = "<|channel|>final<|message|>";

/// Whether a model that goes on after this prompt is inside its reasoning.
bool ends_in_thinking(const OutputFormat& format, std::string_view prompt);

}  // namespace sluice::text
