// A conversation with a loaded model: messages go in, an answer streams out, and both are kept.
// Knows templates and the generator; terminals and commands are not its business.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/generation.h"
#include "text/chat.h"
#include "text/output_parser.h"

namespace sluice::cli {

/// The messages do not fit into the context any more.
class ConversationTooLong : public Error {
 public:
  using Error::Error;
};

struct ChatSettings {
  engine::SamplingParams sampling;
  int64_t max_tokens = -1;
  std::vector<std::string> stops;
  std::string system;         ///< empty: no system message
  std::optional<bool> think;  ///< nothing: as the template has it
};

struct ChatReply {
  text::ParsedOutput output;
  engine::Result result;
};

class ChatSession {
 public:
  /// Is called with what comes, and with how many tokens the thinking has taken so far.
  using Show = std::function<void(const text::OutputEvent&, int64_t thinking_tokens)>;

  /// Throws Error that names the file when it has no chat template or one that cannot be used.
  explicit ChatSession(LoadedModel& model);

  /// Adds a user's message and the answer to it, also an answer that was cancelled. What throws leaves the
  /// conversation as it was: Error, ConversationTooLong.
  ChatReply say(const std::string& text, const Show& show, const std::atomic<bool>* cancel = nullptr);
  /// Answers the last message anew. Throws as say() does, and Error when there is no message.
  ChatReply say_again(const Show& show, const std::atomic<bool>* cancel = nullptr);
  void clear() { messages_ = Json::array(); }

  /// The conversation, the system message included: {"model": ..., "messages": [...]}.
  nlohmann::ordered_json saved() const;
  /// Takes up a conversation as saved() makes it, or a bare array of messages. Throws Error that says what is
  /// wrong, and then nothing has changed.
  void restore(const nlohmann::ordered_json& saved);

  size_t messages() const { return messages_.size(); }
  int64_t context_tokens() const { return context_tokens_; }
  /// The sampler's seed for the next answer; every answer adds 1.
  uint64_t next_seed() const { return settings.sampling.seed + answers_; }
  void set_next_seed(uint64_t seed) { settings.sampling.seed = seed - answers_; }
  LoadedModel& model() const { return model_; }
  std::string_view template_source() const { return source_; }

  ChatSettings settings;

 private:
  using Json = nlohmann::ordered_json;

  Json all_messages() const;
  engine::Request request(const text::ChatPrompt& prompt) const;
  ChatReply answer(const Show& show, const std::atomic<bool>* cancel);

  LoadedModel& model_;
  std::string_view source_;
  text::ChatTemplate template_;
  Json messages_ = Json::array();  ///< without the system message
  int64_t context_tokens_ = 0;     ///< of the last prompt and answer
  uint64_t answers_ = 0;
};

}  // namespace sluice::cli
