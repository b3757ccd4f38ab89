// What a model writes, taken apart while it is being written: reasoning, content, tool calls.
// The same text gives the same result in any chunking, and what is streamed out, put together, is that
// result. Knows formats and tools; tokens and protocols are not its business.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_reader.h"
#include "text/output_format.h"

namespace sluice::text {

/// A step of the output. Text is made of whole UTF-8 characters.
struct OutputEvent {
  enum class Kind { Reasoning, Content, Call };
  Kind kind;
  std::string text = {};  ///< of Reasoning and Content: goes on from the last event of that kind
  ToolCall call = {};     ///< of Call: whole, for until its closing tag it may turn out to be text
};

/// Reads one answer. White space at the ends of reasoning and content is dropped; where a call stood between
/// two texts, one newline does. Bytes that are not UTF-8 become U+FFFD. Takes time linear in the text and no
/// more memory than it, and holds back only what is undecided: what may become a tag, white space that may be
/// at the end, a call until it is closed.
class OutputParser {
 public:
  /// `tools` are the request's (ToolTypes); without any, tags of calls are text. `format` outlives the
  /// parser. Throws Error when the tools make no sense; nothing else here throws.
  OutputParser(const OutputFormat& format, const nlohmann::ordered_json& tools, bool starts_in_thinking);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  /// Takes more of the model's text and returns what is certain now.
  std::vector<OutputEvent> push(std::string_view bytes);
  /// Nothing more comes: returns the rest.
  std::vector<OutputEvent> finish();

  /// Whether the text so far ends in reasoning.
  bool thinking() const;
  /// After finish(): the text ended within a call, which was dropped.
  bool incomplete() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A whole answer.
struct ParsedOutput {
  std::string reasoning_content, content;
  std::vector<ToolCall> tool_calls;
  bool incomplete = false;

  void add(const std::vector<OutputEvent>& events);
};

/// Reads a text at once, or in chunks of `chunk_bytes` bytes (0: at once). Throws as OutputParser does.
ParsedOutput parse_output(const OutputFormat& format, const nlohmann::ordered_json& tools,
                          bool starts_in_thinking, std::string_view text, size_t chunk_bytes = 0);

}  // namespace sluice::text
