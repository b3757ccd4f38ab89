// What a model writes, taken apart while it is being written: reasoning, content, tool calls.
// The same text gives the same result in any chunking, and what is streamed out, put together, is that
// result. Knows formats and tools; tokens and protocols are not its business.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_format.h"

namespace sluice::text {

/// A call that a model wrote.
struct ToolCall {
  std::string name;
  std::string
      arguments;  ///< a JSON object as text, without white space between its parts; cut: its beginning
  bool whole =
      false;  ///< otherwise the text ended within the call, or its arguments make no sense further on
};

/// A step of the output. Text is made of whole UTF-8 characters.
struct OutputEvent {
  enum class Kind : uint8_t {
    Reasoning,
    Content,
    Call,       ///< one begins; its arguments and end come before any other call
    Arguments,  ///< of that call
    CallEnd,    ///< it is whole; of a cut one this never comes
  };
  Kind kind;
  std::string text =
      {};  ///< of Reasoning, Content and Arguments: goes on from the last one; of Call: its name
  /// Of Reasoning and Content: where it ends in all that the model wrote, in bytes.
  size_t end = 0;
  bool joined = false;  ///< it begins with a newline that the model did not write: between two parts
};

/// Reads one answer. White space at the ends of reasoning and content is dropped; where a call stood between
/// two texts, one newline does. Bytes that are not UTF-8 become U+FFFD. Takes time linear in the text and no
/// more memory than it, and holds back only what is undecided: what may become a tag, white space that may be
/// at the end, the beginning of a call until it can be nothing else, and values whose type needs their end.
class OutputParser {
 public:
  /// `tools` are the request's (ToolTypes); without any, tags of calls are text. `format` outlives the
  /// parser. Throws Error when the tools make no sense; nothing else here throws.
  OutputParser(const OutputFormat& format, const nlohmann::ordered_json& tools, bool starts_in_thinking);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  /// Before any text: the prompt ends inside an answer, so that white space at the beginning is part of it.
  void go_on();
  /// Takes more of the model's text and returns what is certain now.
  std::vector<OutputEvent> push(std::string_view bytes);
  /// Nothing more comes: returns the rest. `turn_ended`: the model ended its answer itself, so that a call
  /// which lacks no more than its closing tag is whole.
  std::vector<OutputEvent> finish(bool turn_ended = false);

  /// Whether the text so far ends in reasoning.
  bool thinking() const;
  /// After finish(): not every call in the answer is whole. A cut one was told as far as it came.
  bool incomplete() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A whole answer.
struct ParsedOutput {
  std::string reasoning_content, content;
  std::vector<ToolCall> tool_calls;  ///< cut ones too
  bool incomplete = false;           ///< as in OutputParser

  void add(const std::vector<OutputEvent>& events);
};

/// Reads a text at once, or in chunks of `chunk_bytes` bytes (0: at once). Throws as OutputParser does.
ParsedOutput parse_output(const OutputFormat& format, const nlohmann::ordered_json& tools,
                          bool starts_in_thinking, std::string_view text, size_t chunk_bytes = 0,
                          bool turn_ended = false);

}  // namespace sluice::text
