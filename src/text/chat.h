// A conversation becomes a prompt: messages and tools as clients send them are checked and put the way chat
// templates expect them, and the model's template writes them down.
// Knows OpenAI's message form and what templates need; protocols and tokens are not its business.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/control_tokens.h"
#include "text/jinja/template.h"
#include "text/message_form.h"
#include "text/output_format.h"

namespace sluice::text {

/// What a client says, as OpenAI's chat completions have it.
struct Conversation {
  nlohmann::ordered_json messages;            ///< an array
  nlohmann::ordered_json tools;               ///< an array; null or empty: none
  nlohmann::ordered_json template_arguments;  ///< further variables (enable_thinking, ...); null: none
  bool add_generation_prompt = true;          ///< the prompt ends where an answer begins
  bool continue_last = false;                 ///< it ends inside the last message, which is the assistant's
};

struct ChatPrompt {
  PromptText prompt;            ///< for encode_prompt
  bool starts_in_thinking;      ///< for the OutputParser
  bool in_plain_words = false;  ///< the template fails with the tools' schemas, and was shown less of them
};

/// A model's chat template. Immutable: threads may render at the same time.
class ChatTemplate {
 public:
  /// `bos` and `eos` are the texts of those tokens, for templates that write them; `control` are the tokens
  /// that only the template may write. Throws jinja::TemplateError.
  ChatTemplate(std::string_view source, std::string bos, std::string eos, ControlTokens control);

  /// How the model marks reasoning and calls.
  const OutputFormat& output_format() const { return format_; }
  const ControlTokens& control_tokens() const { return control_; }

  /// Throws Error that names the part of the conversation that makes no sense, jinja::TemplateError when the
  /// template fails or refuses.
  ///
  /// Content may be null, absent or a list of texts, a call's arguments an object or JSON as a string, and
  /// messages may have OpenAI's old forms (role function, function_call): the template sees them in the form
  /// that it takes (MessageForm). Arguments that are no JSON object reach the model as text. `tools` is none
  /// where there are none, and the role is "system" for "developer" unless the template knows that one. A
  /// template that knows no tools sees tools, calls and their results as text in messages; one that writes
  /// one call a message sees several as so many messages. One that fails with the tools' schemas as they are
  /// sees them in plain words (tools_in_plain_words).
  ///
  /// Control tokens in a client's strings reach the prompt as text, and a template that looks for one in such
  /// a string does not find it. Think tags in the content of an assistant without reasoning_content are left
  /// alone: there templates split an earlier answer. Tokens that a template makes out of its own text and the
  /// beginning of a client's string ('<|' + role) count as the template's.
  ChatPrompt render(Conversation conversation, const jinja::RenderOptions& options = {}) const;

 private:
  void mark_message(nlohmann::ordered_json& message, PromptMarker& marker) const;
  std::string add_tools(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const;
  ChatPrompt render_continued(nlohmann::ordered_json variables, const PromptMarker& marker,
                              const jinja::RenderOptions& options) const;
  bool write(nlohmann::ordered_json& variables, const jinja::RenderOptions& options, std::string& text) const;

  jinja::Template template_;
  const OutputFormat& format_;
  std::string source_;  ///< the source
  bool knows_tools_, knows_system_, knows_developer_;
  std::string bos_, eos_;
  ControlTokens control_;
  MessageForm form_;
  std::string call_shape_;  ///< where tools are to be described, as the template does not
};

}  // namespace sluice::text
