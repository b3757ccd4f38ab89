#include "server/chat_completions_request.h"

#include "server/tool_list.h"

namespace sluice::server {

namespace {

/// A call of a tool that takes any text, as a call of a function.
void read_custom_calls(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    if (!call.is_object() || call.contains("function") || !call.contains("custom")) continue;
    const Json custom = call["custom"];
    if (!custom.is_object() || !custom.contains("name")) continue;
    call["type"] = "function";
    call["function"] = {{"name", custom["name"]},
                        {"arguments", {{"input", custom.value("input", Json(""))}}}};
    call.erase("custom");
  }
}

/// A template passes over a role that it does not know, and nobody would notice.
Json read_messages(const Json& list, LeftOut& left_out) {
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Fields fields(list[i], fmt::format("messages[{}]", i));
    const auto role = fields.choice("role", {"system", "developer", "user", "assistant", "tool", "function"});
    if (!role) bad_field(fields.path_of("role"), "is missing");
    const bool asks = *role == "user" || *role == "system" || *role == "developer";
    const Json* content = fields.any("content");
    if (asks && !content) bad_field(fields.path_of("content"), "is missing");
    Json message = list[i];
    if (content) {
      Content said = read_content(*content, fields.path_of("content"), {.from_user = asks}, left_out);
      message["content"] = std::move(said.text);
      if (*role == "assistant" && !said.thinking.empty() && !message.contains("reasoning_content"))
        message["reasoning_content"] = std::move(said.thinking);
    }
    // Other servers call an earlier answer's reasoning_content just reasoning.
    if (message.contains("reasoning") && message["reasoning"].is_string() &&
        !message.contains("reasoning_content"))
      message["reasoning_content"] = message["reasoning"];
    read_custom_calls(message);
    messages.push_back(std::move(message));
  }
  return messages;
}

/// Where the prompt ends, by what the request says of it, or else of its kind.
void read_ending(Fields& fields, text::Conversation& conversation, LastAnswer last_answer) {
  const auto opens = fields.boolean("add_generation_prompt");
  const auto continues = fields.boolean("continue_final_message");
  const Json& last = conversation.messages.back();
  const bool can =
      last["role"] == "assistant" && (!last.contains("tool_calls") || last["tool_calls"].empty());
  if (opens.value_or(false) && continues.value_or(false))
    bad_field("continue_final_message", "cannot stand beside add_generation_prompt: true");
  if (continues.value_or(false) && !can)
    bad_field("continue_final_message",
              "the last message is none of the assistant's that could be continued");
  const bool goes_on = last_answer == LastAnswer::GoesOn;
  conversation.continue_last = can && continues.value_or(opens ? !*opens : goes_on);
  conversation.add_generation_prompt = opens.value_or(true);
}

void read_thinking(Fields& fields, ChatRequest& request) {
  if (const auto on = fields.boolean("enable_thinking")) request.set_thinking(*on);
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    request.read_thinking_type(inner);
    inner.finish();
  }
  for (const char* name : {"thinking_budget_tokens", "thinking_budget"})
    if (const auto tokens = fields.integer(name, -1, INT32_MAX)) request.thinking_budget = *tokens;
  if (const Json* think = fields.any("think"); think && think->is_boolean())
    request.set_thinking(think->get<bool>());
  else
    request.read_effort(fields, "think");
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (const auto on = inner.boolean("enabled")) request.set_thinking(*on);
    request.read_effort(inner, "effort");
    if (const auto tokens = inner.integer("max_tokens", 0, INT32_MAX)) request.thinking_budget = *tokens;
    inner.expect("exclude", 0);
    inner.ignore({"summary", "generate_summary"});
    inner.finish();
  }
  request.read_effort(fields, "reasoning_effort");
}

void read_logprobs(Fields& fields, engine::Request& request) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine::Request::kMostTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) bad_field("top_logprobs", "needs logprobs to be true");
  if (wanted) request.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

/// Predicted outputs: {"type": "content", "content": a text, or parts of it}.
void read_prediction(Fields& fields, const Service& service, engine::Request& request) {
  const Json* prediction = fields.object("prediction");
  if (!prediction) return;
  Fields inner(*prediction, "prediction");
  inner.choice("type", {"content"});
  std::string text;
  const Json* content = inner.any("content");
  if (content && content->is_string()) {
    text = content->get<std::string>();
  } else if (content && content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      const std::string path = fmt::format("prediction.content[{}]", i);
      if (!(*content)[i].is_object()) bad_field(path, "expected an object, not {}", json_kind((*content)[i]));
      Fields part((*content)[i], path);
      part.choice("type", {"text"});
      text += part.string("text").value_or("");
      part.finish();
    }
  } else {
    bad_field("prediction.content", "expected a string or an array of parts");
  }
  inner.finish();
  request.prediction = service.tokenizer.encode(text, false);
  if (std::ssize(request.prediction) > service.engine.options().context)
    request.prediction.resize(static_cast<size_t>(service.engine.options().context));  // no more can be said
}

/// Fields that some clients put one level deeper: extra_body (of OpenAI's Python SDK, where others send it as
/// it is) and Ollama's options. What stands in the body itself goes before.
Json with_nested_fields(const Json& body) {
  static constexpr const char* kOfTheMachine[] = {"num_gpu",  "main_gpu",  "num_thread", "num_batch",
                                                  "use_mmap", "use_mlock", "numa",       "low_vram",
                                                  "f16_kv",   "vocab_only"};
  Json merged = body;
  for (const char* name : {"extra_body", "options"}) {
    const auto nested = merged.find(name);
    if (nested == merged.end()) continue;
    if (!nested->is_null() && !nested->is_object())
      bad_field(name, "expected an object, not {}", json_kind(*nested));
    const Json fields = nested->is_null() ? Json::object() : *nested;
    merged.erase(name);
    for (const auto& [key, value] : fields.items())
      if (!merged.contains(key)) merged[key] = value;
    if (std::string_view(name) == "options")
      for (const char* of_machine : kOfTheMachine)
        if (fields.contains(of_machine)) merged.erase(of_machine);
  }
  return merged;
}

/// How much may be written, by all names that this has.
void read_lengths(Fields& fields, const Service& service, engine::Request& request) {
  const auto tokens = fields.integer("max_tokens", -1, INT32_MAX);
  const auto completion = fields.integer("max_completion_tokens", -1, INT32_MAX);
  auto predict = fields.integer("num_predict", -2, INT32_MAX);  // -2: until the context is full
  if (const auto tokens_of_llama_cpp = fields.integer("n_predict", -2, INT32_MAX))
    predict = tokens_of_llama_cpp;
  request.max_tokens = completion.value_or(tokens.value_or(std::max<int64_t>(predict.value_or(-1), -1)));
  const int64_t context = service.engine.options().context;
  if (fields.integer("num_ctx", 0, INT32_MAX).value_or(0) > context)
    bad_field("num_ctx", "the context here is {} tokens; a larger one is given when the server starts",
              context);
}

/// Where other servers let clients choose what this one does always.
void read_answer_form(Fields& fields, ChatRequest& request) {
  for (const char* name : {"include_reasoning", "separate_reasoning", "skip_special_tokens"})
    fields.expect(name, 1);
  fields.expect("best_of", 1);
  for (const char* name :
       {"echo", "post_sampling_probs", "return_tokens", "return_token_ids", "include_stop_str_in_output",
        "backend_sampling", "reasoning_in_content", "n_discard", "n_indent"})
    fields.expect(name, 0);
  fields.choice("reasoning_format", {"auto", "deepseek", "deepseek-legacy"});
  for (const std::string& kind : fields.strings("modalities"))
    if (kind != "text") bad_field("modalities", "{}: this server writes text alone", kind);
  if (fields.any("web_search_options"))
    request.left_out.emplace_back("web_search_options: there is no search here");
  if (fields.any("moderation")) request.left_out.emplace_back("moderation: there is none here");
}

}  // namespace

void read_chat_conversation(Fields& fields, ChatRequest& request, LastAnswer last_answer) {
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty()) bad_field("messages", "expected an array of at least one message");
  request.conversation.messages = read_messages(*messages, request.left_out);
  if (const Json* tools = fields.array("tools"))
    request.conversation.tools = chat_tools(*tools, request.origins, request.left_out);
  if (const Json* kwargs = fields.object("chat_template_kwargs"))
    request.conversation.template_arguments = *kwargs;
  read_ending(fields, request.conversation, last_answer);
  fields.string("model");  // whatever a client calls it: there is one
}

ChatRequest read_chat(const Json& given, const Service& service, ChatOptions& options) {
  const bool nested = given.is_object() && (given.contains("extra_body") || given.contains("options"));
  const Json merged = nested ? with_nested_fields(given) : Json();
  Fields fields(nested ? merged : given);
  ChatRequest request;
  read_chat_conversation(fields, request, LastAnswer::IsClosed);
  if (const Json* choice = fields.any("tool_choice")) take_tool_choice(*choice, request);
  request.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* form = fields.object("response_format")) request.form = read_form(*form, "response_format");
  if (const auto grammar = fields.string("grammar")) {
    if (request.form.kind != AnswerForm::Kind::Text)
      bad_field("grammar", "cannot stand beside response_format");
    request.form = {AnswerForm::Kind::Grammar, {}, *grammar};
  }
  read_thinking(fields, request);
  read_sampling(fields, service, request.engine.sampling);
  read_stops(fields, "stop", request.engine);
  read_logprobs(fields, request.engine);
  read_lengths(fields, service, request.engine);
  read_answer_form(fields, request);
  request.engine.ignore_end = fields.boolean("ignore_eos").value_or(false);
  request.engine.use_cache = fields.boolean("cache_prompt").value_or(true);
  read_prediction(fields, service, request.engine);
  request.engine.use_drafts = fields.integer("speculative.n_max", 0, INT32_MAX).value_or(1) > 0;
  request.choices = fields.integer("n", 1, kMostChoices).value_or(1);
  request.stream = fields.boolean("stream").value_or(false);
  options.progress = fields.boolean("return_progress").value_or(false);
  if (const Json* stream = fields.object("stream_options")) {
    Fields inner(*stream, "stream_options");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    inner.ignore({"include_obfuscation", "continuous_usage_stats", "chunk_include_usage"});
    inner.finish();
  }
  for (const char* name : {"functions", "function_call"}) {
    if (fields.any(name)) bad_field(name, "is not supported; use tools and tool_choice");
  }
  if (fields.any("audio")) bad_field("audio", "this server knows text alone");
  fields.ignore({"user",
                 "store",
                 "metadata",
                 "service_tier",
                 "safety_identifier",
                 "prompt_cache_key",
                 "prompt_cache_retention",
                 "verbosity",
                 "keep_alive",
                 "timings_per_token",
                 "provider",
                 "usage",
                 "id_slot",
                 "speculative.n_min",
                 "speculative.p_min",
                 "stream_response",
                 "stream_delta_chunk_size",
                 "function_calling",
                 "extra_headers",
                 "prompt_cache_options",
                 "chat_id",
                 "session_id"});
  if (!options.any_field) fields.finish();
  for (const std::string& name : fields.unread()) request.left_out.push_back(name + ": not known here");
  return request;
}

}  // namespace sluice::server
