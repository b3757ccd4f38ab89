// A request at work: its choices run in the engine, and what they write is taken apart on the workers, piece
// by piece, for whoever writes the answer. Knows the engine and the parsers; the shapes of answers are its
// users' business.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/service.h"
#include "server/shown_tokens.h"
#include "server/workers.h"
#include "text/output_parser.h"
#include "text/stream.h"

namespace sluice::server {

/// One request and what it needs: handed from the routes to an endpoint.
struct Call {
  const Service& service;
  RequestTimes& times;
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<SerialQueue> queue;
  Style style;
  std::string client;     ///< for the engine's fairness
  size_t max_body_bytes;  ///< decoded
  std::shared_ptr<RequestRecord> record;
  std::shared_ptr<const Service> lease = {};  ///< the model stays loaded while somebody has it
  uint64_t number = 0;                        ///< no other call has it
  engine::PrefixGroup group = {};             ///< whose cached prefixes it may use
  std::shared_ptr<MemoryShare> work;          ///< what its endpoint holds while it runs

  /// Counts memory that the endpoint takes, or that the request holds until its end. Throws ApiError: there
  /// is too little.
  void take_for_work(size_t bytes) const;
  void take_to_the_end(size_t bytes) const;
};

/// What to run.
struct GenerationPlan {
  std::vector<engine::Request> requests;       ///< one a choice
  const text::OutputFormat* format = nullptr;  ///< null: the answer is plain text
  Json tools;
  bool starts_in_thinking = false;
  bool one_call = false;      ///< the first tool call ends the answer
  bool goes_on = false;       ///< the prompt ends inside an answer
  int64_t prompt_tokens = 0;  ///< of all different prompts
  int64_t earlier_calls = 0;  ///< in the conversation
  bool hears_prompt = false;  ///< Sink::prompt is called
  bool all_tokens = false;    ///< Choice::tokens are all that were drawn, the end token too
  std::shared_ptr<ConstraintUse> constraint_use = {};
};

/// Tokens up to the one that cut a choice, which the engine hears of later.
struct Drawn {
  int64_t tokens = 0, accepted = 0;
  int64_t first_ns = 0, last_ns = 0;

  void add(int64_t accepted_before, int64_t time_ns) {
    if (tokens++ == 0) first_ns = time_ns;
    accepted = accepted_before, last_ns = time_ns;
  }
};

/// What a choice has written so far.
struct Choice {
  text::ParsedOutput output;
  std::vector<TokenInfo> tokens;  ///< of the content, where log-probabilities were asked for
  std::vector<TokenInfo> prompt;  ///< the prompt's, where these were; the first has none
  int64_t reasoning_tokens = 0;
  Drawn drawn;
  engine::Result result;  ///< once it has ended
  bool ended = false;
  bool cut = false;       ///< a stop text or its first call was the end, whatever the model still writes
  std::string stop = {};  ///< the stop text that was

  bool called() const { return !output.tool_calls.empty(); }
  /// The model ended within its limits, and every call is whole.
  bool complete() const {
    if (output.incomplete) return false;
    return result.finish == engine::Finish::EndToken || result.finish == engine::Finish::StopString;
  }
};

/// How far a choice's prompt is read, in tokens.
struct PromptProgress {
  int64_t cached, done, total;
  int64_t ns;  ///< since the request came
};

class Generation;

/// Writes the answer. Called on the workers, one call after the other.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void piece(const Generation&, size_t /*choice*/, const std::vector<text::OutputEvent>& /*events*/,
                     std::span<const TokenInfo> /*tokens*/) {}
  virtual void ended(const Generation&, size_t /*choice*/) {}
  virtual void prompt(const Generation&, size_t /*choice*/, const PromptProgress&) {}
  /// All choices have ended: the last call. `failure`: the engine could not go on.
  virtual void done(const Generation&, const std::optional<ApiError>& failure) = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// Hands the requests to the engine. Cancels them when the client goes. Throws ApiError, and then nothing
  /// runs.
  static std::shared_ptr<Generation> start(const Call& call, GenerationPlan plan, std::unique_ptr<Sink> sink);

  const Service& service() const { return service_; }
  /// The id of a choice's call by its number: what the model itself calls it, where it does, otherwise new.
  std::string call_id(std::string_view name, size_t number, std::string_view prefix) const;
  const std::vector<Choice>& choices() const { return choices_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const;  ///< of the choice that found the most
  int64_t generated_tokens() const;
  int64_t draft_tokens() const;     ///< that were computed ahead of being drawn
  int64_t accepted_tokens() const;  ///< of those: were right
  int64_t reasoning_tokens() const;

 private:
  class Ear;
  struct News {
    size_t choice;
    int32_t token = 0;
    std::string text = {};
    enum class Of : uint8_t { Answer, Prompt, End } of = Of::Answer;  ///< what the token is of
    int64_t accepted = 0, time_ns = 0;                                ///< of the answer's token
    std::vector<engine::TokenLogprob> logprobs = {};
    std::optional<engine::Result> result = {};
    std::optional<PromptProgress> progress = {};
  };

  Generation(const Call& call, GenerationPlan& plan, std::unique_ptr<Sink> sink);
  void submit(std::vector<engine::Request> requests, Style style);
  void cancel();
  void hear(News news);
  void drain();
  void read_news();
  void give_up(const ApiError& why);
  void take(News& news);
  void show(size_t choice, std::vector<text::OutputEvent>& events, bool last);
  void stop_content(size_t choice, std::vector<text::OutputEvent>& events, bool last);
  void hold(size_t bytes);
  void deliver(size_t choice, const std::vector<text::OutputEvent>& events,
               std::span<const TokenInfo> tokens);
  void end(size_t choice, engine::Result result);
  void record_end();

  std::shared_ptr<const Service> lease_;
  const Service& service_;
  RequestTimes& times_;
  std::shared_ptr<RequestRecord> record_;
  std::shared_ptr<SerialQueue> queue_;
  std::unique_ptr<Sink> sink_;
  std::shared_ptr<ConstraintUse> constraint_use_;
  Json tools_;
  bool one_call_, keeps_tokens_ = false, hears_prompt_, all_tokens_, show_special_ = false;
  const text::OutputFormat* format_;
  int64_t prompt_tokens_ = 0, earlier_calls_ = 0, started_ns_;
  const uint64_t group_;  ///< whose calls they are
  std::vector<Choice> choices_;
  std::vector<std::optional<text::OutputParser>> parsers_;
  /// Of what a parser says.
  struct ContentStops {
    text::StopStream stops;
    std::string spaces = {};  ///< held back
  };
  std::vector<ContentStops> stops_;  ///< by choice; none where answers are plain text
  std::vector<ShownTokens> tokens_;  ///< by choice; none where nobody asks for log-probabilities
  size_t running_;
  MemoryShare memory_;  ///< what the choices have written

  std::mutex mutex_;  // over what follows
  std::vector<News> inbox_;
  bool scheduled_ = false;
  std::vector<engine::RequestId> ids_;  ///< by choice
  std::vector<News> reading_;           ///< the workers' alone
};

}  // namespace sluice::server
