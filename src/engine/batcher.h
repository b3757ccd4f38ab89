// Many requests on one executable, step by step: rows go in as the scheduler says, tokens are drawn from the
// logits that come out, and listeners hear their text. Where the executable draws tokens itself, a step
// begins while the one before it runs, so that a device never waits for the host; the host draws them again,
// and what it draws counts. Elsewhere what an answer may go on with is drafted, and computed in the same
// step. Where steps pause, a long one of prompts does so again and again, for steps aside. One thread's
// business: an Engine's (engine.h), or a Generator's caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/batch.h"
#include "engine/draft_pace.h"
#include "engine/engine.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "program/backend.h"
#include "text/stream.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Batcher {
 public:
  /// As Engine's.
  Batcher(program::Executable& executable, const text::Tokenizer& tokenizer, const EngineOptions& options);
  /// Waits for what has begun.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  /// Throws what Engine::submit() throws for requests that make no sense. From any thread.
  void validate(const Request& request) const;

  /// Takes a valid request, which came at that time.
  void add(RequestId id, Request request, std::shared_ptr<Listener> listener, int64_t time_ns);
  /// Ends a request, at once or with the long step that has its rows and others'. One that has ended already:
  /// nothing.
  void cancel(RequestId id);
  void end_all(Finish finish, std::string_view error = {});
  /// One step of the executable, or a stretch of a long one behind a step aside. False: there was nothing to
  /// do. Once *stop is true the step may be given up, as though it had not begun; once *pause is, a long one
  /// pauses.
  bool step(const std::atomic<bool>* stop = nullptr, const std::atomic<bool>* pause = nullptr);
  /// Whether giving up the step that runs, or is being planned, is all that it takes to be rid of a request:
  /// no other one's prompt has rows in it. From any thread.
  bool only_reads(RequestId id) const {
    const RequestId reads = reads_.load();
    return reads == id || reads == kNotPlanned;
  }

  int64_t requests() const { return std::ssize(jobs_); }
  int64_t waiting() const { return scheduler_.waiting(); }
  /// Overwrites all of `stats`.
  void snapshot(EngineStats& stats) const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Job {
    Request request;
    std::shared_ptr<Listener> listener;
    text::StopStream stops;
    std::optional<Sampler> sampler = {};  ///< from its admission on
    PromptLookup lookup;
    text::Utf8Stream utf8 = {};
    Result result = {};
    int64_t added_ns = 0, admitted_ns = 0, first_token_ns = 0;  ///< 0: not yet
    bool cancelled = false;  ///< and ends with the long step that has its rows, and others'
  };

  /// A row of a step whose logits are wanted.
  struct Output {
    RequestId id;          ///< 0: nobody's any more
    int64_t position = 0;  ///< the row's, and ...
    int32_t drafted = -1;  ///< ... its token, if it was drafted; -1: it was drawn, or is the prompt's
  };

  /// What a step gives of a wanted row: all logits, or else the likeliest tokens.
  struct Row {
    std::span<const float> logits;
    std::span<const program::Likely> likeliest;
  };

  /// A row of a step that began before the one before it had ended.
  struct AheadRow {
    RequestId id;
    int64_t position;
    size_t output;  ///< of the step before, whose token is this row's
  };

  /// A step of prompts that pauses.
  struct LongStep {
    Batch batch;
    std::span<const Chunk> chunks = {};
    std::vector<Output> outputs = {};
    int64_t ns = 0;       ///< that it has run
    int64_t late_ns = 0;  ///< that it ran on when it was to pause, lately and at most
  };

  void step_whole(std::span<const Chunk> chunks, const std::atomic<bool>* stop, int64_t begin_ns);
  void step_long(const std::atomic<bool>* stop, const std::atomic<bool>* pause);
  double step_aside();
  void end_long(int64_t time_ns);
  void give_up_long();
  void finish_cancelled();
  program::StepOutput run(const program::StepInput& input);
  void count_step(std::span<const Chunk> chunks);
  void observe_answers(std::span<const Chunk> chunks, double seconds);
  std::span<const Chunk> begin_planned();
  std::span<const Chunk> take_ahead();
  bool match_ahead(std::span<const Chunk> chunks);
  void begin_ahead(std::span<const Chunk> chunks);
  bool writes_on(const Job& job) const;
  void drop_ahead();
  void begin_admitted();
  void draft();
  void fill_batch(std::span<const Chunk> chunks, Batch& batch, std::vector<Output>& outputs) const;
  /// Begins the batch, or runs it; row(i) is what it gives of output i once it has ended.
  void begin_batch();
  /// False: it was stopped, and gives nothing.
  bool end_batch(const std::atomic<bool>* stop);
  Row row(size_t i) const;
  /// Whether an answer's next token can be drawn from the likeliest ones.
  bool likeliest_suffice(const Job& job) const;
  void take_tokens(std::span<const Output> outputs, int64_t time_ns);
  void take_token(Job& job, RequestId id, const Row& row, int64_t time_ns);
  std::optional<int32_t> draw(Job& job, const Row& row);
  void finish(RequestId id, Job& job, Finish finish, std::string_view error);

  program::Executable& executable_;
  const text::Tokenizer& tokenizer_;
  EngineOptions options_;
  Scheduler scheduler_;
  Batch batch_;
  LongStep long_;
  size_t columns_;     ///< of a row of logits
  size_t vocabulary_;  ///< those of them that are tokens
  // The executable's own memory where it has enough, which saves a copy; or own_logits_.
  std::span<float> logits_;
  std::vector<float> own_logits_;
  std::vector<program::Likely> likeliest_;  ///< empty: the executable does not find them
  std::vector<int32_t> drawn_;              ///< by the executable, for the step that begins ahead
  SamplerScratch scratch_;
  std::vector<uint32_t> allowed_;
  std::vector<TokenLogprob> logprobs_;
  std::vector<Output> outputs_;  ///< whose logits a step gives, in their order
  std::vector<int32_t> whole_;   ///< which of those need all logits, where others have likeliest tokens
  std::vector<Draft> drafts_;    ///< of the answers of the next step
  DraftPace draft_pace_;
  bool few_ = false;             ///< the step gives likeliest tokens
  bool gave_up_ = false;         ///< the step before this one
  bool begun_ = false;           ///< the step has begun, and its end is to be waited for
  std::vector<AheadRow> ahead_;  ///< of the step that has begun after it; empty: none has
  std::vector<AheadRow> next_;   ///< what ahead_ may become
  std::unordered_map<RequestId, Job> jobs_;
  static constexpr RequestId kNotPlanned = ~RequestId{0};
  std::atomic<RequestId> reads_{kNotPlanned};  ///< the one whose prompt is read, 0: several's, or no one's
  int64_t last_end_ns_ = 0;                    ///< of the step before this one; 0: there was a pause
  EngineStats totals_;
};

}  // namespace sluice::engine
