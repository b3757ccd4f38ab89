// What a caller asks the engine for, and what it hears back. Knows tokens, text and numbers; nothing of HTTP
// or JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/prefix_group.h"
#include "engine/sampler.h"

namespace sluice::text {
class TokenConstraint;  // text/constraint.h
}

namespace sluice::engine {

/// Names a request for as long as the engine lives; never 0, never given twice.
using RequestId = uint64_t;

struct Request {
  /// Of log-probabilities, how many may be asked for beside the token's own.
  static constexpr int32_t kMostTopLogprobs = 20;

  std::vector<int32_t> prompt;
  /// -1: until the model ends or the context is full; 0: nothing is computed, but for prompt_logprobs.
  int64_t max_tokens = -1;
  SamplingParams sampling;
  std::vector<std::string> stops;
  bool show_special = false;  ///< control tokens become text too: their names
  bool ignore_end = false;    ///< end tokens are tokens like others: for benchmarks
  bool use_cache = true;      ///< rows of earlier requests may be taken over
  bool use_drafts = true;     ///< as far as the engine has any
  /// Tokens of which some are likely to come: drafts are looked up there, too. The answer does not depend on
  /// it.
  std::vector<int32_t> prediction = {};
  /// For benchmarks: whether a drafted token counts as right, whatever the model says. Where no block of the
  /// model drafts, anything is drafted.
  std::function<bool()> accepts = {};
  int32_t top_logprobs = -1;  ///< -1: none; n: the token's log-probability and those of the n likeliest
  /// Those of the prompt's tokens too, but for the first. Then all of the prompt is computed.
  bool prompt_logprobs = false;
  /// Which tokens may come next; the engine alone uses it from submit() on. Null: all.
  std::shared_ptr<text::TokenConstraint> constraint;
  /// Clients share what there is: places in the batch, turns of those that wait, and the time in which tokens
  /// are drawn, and so do, of that time, calls: the requests that were made for one (0: this one alone).
  std::string client = {};
  uint64_t call = 0;
  PrefixGroup group = {};  ///< whose prefixes it may take over, and who its own
};

enum class Finish : uint8_t {
  EndToken,    ///< the model ended its turn
  StopString,  ///< a stop string appeared: Result::stop
  Length,      ///< max_tokens
  ContextFull,
  Cancelled,
  Error,     ///< Result::error says what
  Shutdown,  ///< the engine stopped before the end
  OutOfMemory,
};
inline constexpr int kFinishes = 8;

/// One name in lower case, as in "stop_string".
std::string_view finish_name(Finish finish);

/// What a request came to.
struct Result {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     ///< of the prompt: their rows were in the cache
  int64_t generated_tokens = 0;  ///< the end token counts
  int64_t queue_ns = 0;          ///< from submit() until it was first taken into a step's batch
  int64_t prompt_ns = 0;         ///< from then until the first token was there
  int64_t decode_ns = 0;         ///< all tokens after the first
  int64_t draft_tokens = 0;      ///< that were drafted and computed
  int64_t accepted_tokens = 0;   ///< of those: were right
  int32_t preemptions = 0;       ///< how often it gave its pages to others and came back
  Finish finish = Finish::Length;
  std::string stop;   ///< the stop string that ended it
  std::string error;  ///< one line
};

struct TokenLogprob {
  int32_t token;
  float logprob;  ///< natural logarithm, of the model's own distribution: before penalties and temperature
};

/// One token was drawn. Views live as long as the call.
struct TokenEvent {
  RequestId id;
  int32_t token;
  /// Whole characters; empty while they are held back: unfinished, or maybe the beginning of a stop string.
  std::string_view text;
  /// If asked for: the token's own first, then the likeliest in order (the token may be among them).
  std::span<const TokenLogprob> logprobs;
  int64_t time_ns;   ///< base/clock.h, the same for all tokens of a step
  int64_t index;     ///< 0, 1, ... of this request's tokens
  int64_t accepted;  ///< of the tokens before it: drafted, and right
};

/// Who hears what becomes of a request. All calls come from the thread that steps (an Engine's own), one
/// after the other, and must return at once: no waiting, no I/O, no exceptions. They may call
/// Engine::submit() and cancel().
class Listener {
 public:
  virtual ~Listener() = default;
  /// So many rows of the prompt are in the cache now: once when a request leaves the queue, and after each of
  /// its steps.
  virtual void on_prompt(RequestId, int64_t /*done*/, int64_t /*total*/) {}
  /// The prompt's token `index`, 1, 2, ..., with its log-probabilities: where these are wanted, and before
  /// any token is drawn. Views live as long as the call.
  virtual void on_prompt_token(RequestId, int64_t /*index*/, std::span<const TokenLogprob> /*logprobs*/) {}
  virtual void on_token(const TokenEvent& event) = 0;
  /// The token that ends the model's turn was drawn: no text, and no token for on_token().
  virtual void on_end_token(const TokenEvent& /*event*/) {}
  /// The last call of every request. `text` is what was held back and may be shown after all.
  virtual void on_end(RequestId id, std::string_view text, const Result& result) = 0;
};

/// The prompt leaves no room in the context.
class ContextExceeded : public Error {
 public:
  ContextExceeded(int64_t prompt_tokens, int64_t context);
  int64_t prompt_tokens, context;
};

/// The request cannot be taken now: too many wait, or the engine is stopping.
class Unavailable : public Error {
 public:
  using Error::Error;
};

}  // namespace sluice::engine
