// What the chat endpoints have in common: a conversation with its wishes, which becomes prompts for the
// engine. Protocols fill it in; this knows templates, tokens and constraints.
#pragma once

#include <optional>
#include <string>

#include "server/content.h"
#include "server/fields.h"
#include "server/generation.h"
#include "server/tool_list.h"
#include "text/chat.h"

namespace sluice::server {

/// Answers to one request.
inline constexpr int64_t kMostChoices = 64;

struct ToolChoice {
  enum class Kind { Auto, None, Required, Named } kind = Kind::Auto;
  std::string name = {};  ///< of Named
};

/// What form the content must have.
struct AnswerForm {
  enum class Kind { Text, JsonObject, JsonSchema, Grammar } kind = Kind::Text;
  Json schema = {};
  std::string grammar = {};
  bool strict = false;  ///< of a schema: what cannot be kept is an error, without exceptions
};

struct ChatRequest {
  text::Conversation conversation;
  ToolChoice tool_choice;
  bool parallel_calls = true;
  AnswerForm form;
  std::optional<int64_t> thinking_budget = {};  ///< tokens of reasoning at most; -1: no limit
  engine::Request engine;                       ///< all but prompt, seed of further choices and constraint
  int64_t choices = 1;
  bool stream = false;
  LeftOut left_out = {};     ///< for the log
  ToolOrigins origins = {};  ///< tools that are more than functions to the client

  /// Asks the template for thinking or for none.
  void set_thinking(bool on);
  /// How much, for templates that ask; "none" is no thinking.
  void read_effort(Fields& fields, const char* name);
  /// {"type": "enabled", "budget_tokens": N}, as Anthropic's API and others have it.
  void read_thinking_type(Fields& fields);
};

/// Sampling fields by the names that OpenAI's API and others have. `service` gives what is not said.
void read_sampling(Fields& fields, const Service& service, engine::SamplingParams& sampling);
/// `stop` under this name.
void read_stops(Fields& fields, std::string_view name, engine::Request& request);
/// OpenAI's `tool_choice`, after the tools are read. A function that it names stands beside the type, as the
/// responses API has it, or in an object of the type's name, as chat completions have it.
void take_tool_choice(const Json& value, ChatRequest& request);
/// {"type": "text" | "json_object" | "json_schema", ...}; in chat completions the schema stands in
/// "json_schema", in the responses API beside "type".
AnswerForm read_form(const Json& format, const std::string& path);

/// What binds an answer to its form, out of the service's cache or made; the log says what is left unbound.
/// `format`: the model's, where it answers in one. Null: any text will do.
Bound constraint_of(const Service& service, const AnswerForm& form,
                    const text::OutputFormat* format = nullptr, bool starts_in_thinking = false,
                    const text::CallRule& rule = {});

/// The prompt as tokens. Throws ApiError that names the part that makes no sense.
struct EncodedPrompt {
  std::vector<int32_t> tokens;
  bool starts_in_thinking;
};
std::string render_prompt(const Service& service, text::Conversation conversation);
EncodedPrompt encode_chat(const Service& service, text::Conversation conversation);

/// Tokens of a text that a client wrote as the model is to see it: names of control tokens are tokens.
std::vector<int32_t> encode_text(const Service& service, std::string_view text);

/// The plan of a chat request. `group`: whose earlier calls the conversation may hold. Throws ApiError.
GenerationPlan plan_chat(const Service& service, uint64_t group, ChatRequest request);

}  // namespace sluice::server
