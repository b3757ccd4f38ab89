#include "cli/chat_session.h"

#include <utility>

#include "cli/chat_template.h"
#include "cli/progress.h"
#include "text/stream.h"

namespace sluice::cli {
namespace {

/// Text from outside: what is no UTF-8 becomes U+FFFD.
std::string as_utf8(const std::string& text) {
  text::Utf8Stream stream;
  std::string out = stream.push(text);
  return out += stream.finish();
}

}  // namespace

ChatSession::ChatSession(LoadedModel& model)
    : model_(model),
      source_(chat_template_source(model.file())),
      template_(make_chat_template(model.file(), model.tokenizer())) {
  settings.sampling = model.sampling();
}

ChatSession::Json ChatSession::all_messages() const {
  Json all = Json::array();
  if (!settings.system.empty()) all.push_back({{"role", "system"}, {"content", as_utf8(settings.system)}});
  for (const Json& message : messages_) all.push_back(message);
  return all;
}

engine::Request ChatSession::request(const text::ChatPrompt& prompt) const {
  const text::Tokenizer& tokenizer = model_.tokenizer();
  engine::Request request;
  request.prompt = text::encode_prompt(tokenizer, template_.control_tokens(), prompt.prompt);
  const bool begun = !request.prompt.empty() && request.prompt.front() == tokenizer.bos();
  if (tokenizer.add_bos() && !begun) request.prompt.insert(request.prompt.begin(), tokenizer.bos());
  if (const auto tokens = static_cast<int64_t>(request.prompt.size()); tokens >= model_.context()) {
    throw ConversationTooLong(fmt::format(
        "the conversation has {} tokens and leaves no room in a context of {}", tokens, model_.context()));
  }
  request.max_tokens = settings.max_tokens;
  request.sampling = settings.sampling;
  request.sampling.seed = next_seed();  // the same message again is to get another answer
  request.stops = settings.stops;
  request.show_special = true;  // the tags of reasoning and calls may be control tokens
  return request;
}

// Appends the answer to the messages.
ChatReply ChatSession::answer(const Show& show, const std::atomic<bool>* cancel) {
  text::Conversation conversation;
  conversation.messages = all_messages();
  if (settings.think) {  // templates disagree on the name
    conversation.template_arguments = {{"enable_thinking", *settings.think}, {"thinking", *settings.think}};
  }
  const text::ChatPrompt prompt = template_.render(std::move(conversation));

  ChatReply reply;
  int64_t thinking_tokens = 0;
  text::OutputParser parser(template_.output_format(), nullptr, prompt.starts_in_thinking);
  const auto take = [&](const std::vector<text::OutputEvent>& events) {
    reply.output.add(events);
    for (const text::OutputEvent& event : events) show(event, thinking_tokens);
  };
  const auto on_text = [&](std::string_view text) {
    take(parser.push(text));
    if (parser.thinking()) ++thinking_tokens;
    return true;
  };
  reply.result = model_.generator().run(request(prompt), on_text, cancel, prompt_bar());
  take(parser.finish());
  ++answers_;
  context_tokens_ = reply.result.prompt_tokens + reply.result.generated_tokens;
  Json message = {{"role", "assistant"}, {"content", reply.output.content}};
  if (!reply.output.reasoning_content.empty()) message["reasoning_content"] = reply.output.reasoning_content;
  messages_.push_back(std::move(message));
  return reply;
}

ChatReply ChatSession::say(const std::string& text, const Show& show, const std::atomic<bool>* cancel) {
  const Json before = messages_;
  messages_.push_back({{"role", "user"}, {"content", as_utf8(text)}});
  try {
    return answer(show, cancel);
  } catch (...) {
    messages_ = before;
    throw;
  }
}

ChatReply ChatSession::say_again(const Show& show, const std::atomic<bool>* cancel) {
  const Json before = messages_;
  if (!messages_.empty() && messages_.back()["role"] == "assistant") messages_.erase(messages_.size() - 1);
  if (messages_.empty()) {
    messages_ = before;
    fail("there is no message to answer yet");
  }
  try {
    return answer(show, cancel);
  } catch (...) {
    messages_ = before;
    throw;
  }
}

nlohmann::ordered_json ChatSession::saved() const {
  const auto name = model_.file().string("general.name");
  return {{"model", std::string(name ? *name : model_.file().path())}, {"messages", all_messages()}};
}

void ChatSession::restore(const Json& saved) {
  const bool has_messages = saved.is_object() && saved.contains("messages");
  const Json& list = has_messages ? saved["messages"] : saved;
  if (!list.is_array()) fail("expected an object with an array \"messages\"");
  Json messages = Json::array();
  std::string system;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& message = list[i];
    const auto is_text = [&](const char* key) { return message.contains(key) && message[key].is_string(); };
    if (!message.is_object() || !is_text("role") || !is_text("content"))
      fail("messages[{}]: expected an object with strings \"role\" and \"content\"", i);
    const auto& role = message["role"].get_ref<const std::string&>();
    if (message.contains("reasoning_content") && !is_text("reasoning_content"))
      fail("messages[{}].reasoning_content: expected a string", i);
    if (role == "system" && i == 0) {
      system = message["content"];
    } else if (role == "user" || role == "assistant") {
      messages.push_back(message);
    } else {
      fail("messages[{}]: role \"{}\", expected user or assistant, or system in front", i,
           gguf::printable(role));
    }
  }
  messages_ = std::move(messages);
  settings.system = std::move(system);
}

}  // namespace sluice::cli
