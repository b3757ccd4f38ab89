// Many requests on one executable, step by step: rows go in as the scheduler says, tokens are drawn from what
// comes out, and listeners hear their text. A step is a value: the plan, its rows, whose its outputs are; the
// ways of stepping are small drivers over it. Where steps may be in flight, a step is submitted while the one
// before it runs, so that a device never waits for the host; the host draws the tokens again, and what it
// draws counts. What an answer may go on with is drafted, and computed in the same step. Where steps pause, a
// long one of prompts does so again and again, for steps aside. One thread's business: an Engine's
// (engine.h), or a Generator's caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/batch.h"
#include "engine/block_teller.h"
#include "engine/draft_pace.h"
#include "engine/draw_pace.h"
#include "engine/engine.h"
#include "engine/page_keeper.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/token_predictor.h"
#include "program/executable.h"
#include "text/stream.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Batcher {
 public:
  /// As Engine's.
  Batcher(program::Executable& executable, const text::Tokenizer& tokenizer, const EngineOptions& options,
          store::PageStore* store = nullptr, events::Sink* sink = nullptr);
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
  /// do, but maybe to wait for pages (moves_pages()). Once *stop is true the step may be given up, as though
  /// it had not begun; once *pause is, a long one pauses.
  bool step(const std::atomic<bool>* stop = nullptr, const std::atomic<bool>* pause = nullptr);
  /// Whether giving up the step that runs, or is being planned, is all that it takes to be rid of a request:
  /// no other one's prompt has rows in it. From any thread.
  bool only_reads(RequestId id) const {
    const RequestId reads = reads_.load();
    return reads == id || reads == kNotPlanned;
  }

  /// Whether pages are on their way from or to the store: they go on with the next step().
  bool moves_pages() const { return keeper_ && keeper_->busy(); }
  /// Gives up cached pages that nobody uses, wherever they are.
  void clear_cache();
  /// Tells whoever wants to know which blocks have entered the cache and left it.
  void tell_blocks() {
    if (teller_) teller_->flush();
  }

  /// Called when a request has ended, before its listener hears it: who hears it finds it gone from whatever
  /// the call keeps, as a snapshot().
  void before_ends(std::function<void()> call) { before_ends_ = std::move(call); }

  int64_t requests() const { return std::ssize(jobs_); }
  int64_t waiting() const { return scheduler_.waiting(); }
  /// Overwrites all of `stats`.
  void snapshot(EngineStats& stats) const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  /// A request, as the scheduler knows it and all that it does not.
  struct Job : Sequence {
    Request request;
    std::shared_ptr<Listener> listener;
    text::StopStream stops;
    std::optional<Sampler> sampler = {};  ///< from its admission on
    PromptLookup lookup;
    Prediction prediction = {};
    bool predicted = false;     ///< its draft is that, and not what was looked up
    int32_t drafted_next = -1;  ///< behind the token that is to be drawn; -1: none
    text::Utf8Stream utf8 = {};
    Result result = {};
    int64_t added_ns = 0, admitted_ns = 0, first_token_ns = 0;  ///< 0: not yet
    double draw_seconds = 0, drawn_seconds = 0;  ///< that drawing its last tokens took each, and all of them
    int64_t drawn_ns = 0;                        ///< when the last one was
    bool out_of_memory = false;                  ///< it ends with its first token
    bool cancelled = false;  ///< and ends with the long step that has its rows, and others'

    Job(Request given, std::shared_ptr<Listener> hears);
    /// Whether it goes on after the token that is being computed, unless that one ends it.
    bool writes_on(int64_t context) const;
    std::span<const int32_t> found() const { return predicted ? prediction.found() : lookup.found(); }
  };
  /// All that the scheduler knows are jobs.
  static Job& job_of(Sequence* sequence) { return static_cast<Job&>(*sequence); }

  /// An output of a step: whose it is, and on which condition.
  struct Output {
    Job* job;               ///< null: nobody's any more
    int64_t position = 0;   ///< the row's, if its token was assumed or it scores one
    int32_t assumed = -1;   ///< the token, drafted or drawn by the executable; -1: it is certain
    size_t drawn_from = 0;  ///< of a step ahead: the output of the step before that gives its token
    bool scores = false;    ///< the prompt's token behind that position, and gives none
  };

  /// A step from its plan to its results.
  struct Planned {
    std::span<const Chunk> chunks = {};
    Batch batch;
    std::vector<Output> outputs = {};            ///< in the order of the batch's
    std::optional<program::Ticket> ticket = {};  ///< while it is in flight
  };

  /// A step of prompts that pauses.
  struct LongStep : Planned {
    int64_t ns = 0;       ///< that it has run
    int64_t late_ns = 0;  ///< that it ran on when it was to pause, lately and at most
  };

  bool plan_step();
  void step_whole(const std::atomic<bool>* stop, int64_t begin_ns);
  void step_long(const std::atomic<bool>* stop, const std::atomic<bool>* pause);
  double step_aside();
  void end_long(const program::StepResult& result, int64_t time_ns);
  void give_up_long();
  void finish_cancelled();

  bool take_ahead();
  static bool matches(Planned& ahead, std::span<const Chunk> chunks);
  void begin_ahead();
  void drop_ahead();

  void pace_draws();
  void draft();
  int32_t any_token(int64_t number) const;
  static bool may_draft(const Sequence& sequence);
  bool choose_drafts(size_t unknown);
  void find_draft(Job& job, Draft& draft, size_t unknown);
  void predict();
  void hand_on(const Planned& step);
  void follow();
  void begin_admitted();
  void make_sampler(Job& job);
  void fill(Planned& step, std::span<const Chunk> chunks) const;
  void submit(Planned& step, const std::atomic<bool>* stop = nullptr);
  program::StepResult collect(Planned& step);
  void count(const Planned& step);
  void observe(const Planned& step, double seconds);
  program::Want want_of(const Job& job, int drawn_before) const;
  /// Whether an answer's next token can be drawn from the likeliest ones.
  bool top_suffices(const Job& job) const;
  void take_tokens(std::span<Output> outputs, const program::StepResult& result, int64_t time_ns);
  int32_t simulated(const Job& job, int32_t drawn) const;
  void take_output(const Output& output, const program::RowResult& row, int64_t time_ns);
  void take_token(Job& job, const program::RowResult& row, int64_t time_ns);
  void take_score(Job& job, int64_t position, const program::RowResult& row);
  std::optional<int32_t> draw(Job& job, const program::RowResult& row);
  std::optional<int32_t> timed_draw(Job& job, const program::RowResult& row);
  void finish(Job& job, Finish finish, std::string_view error = {});

  program::Executable& executable_;
  const bool has_states_;
  const program::Facts facts_;
  const text::Tokenizer& tokenizer_;
  const EngineOptions options_;
  const size_t columns_;     ///< of a row of logits
  const size_t vocabulary_;  ///< those of them that are tokens
  std::unordered_map<RequestId, Job> jobs_;
  std::function<void()> before_ends_;
  Scheduler scheduler_;                ///< of the jobs
  store::PageStore* const store_;      ///< null: pages are on the device alone
  std::optional<PageKeeper> keeper_;   ///< of the store
  std::optional<BlockTeller> teller_;  ///< null: nobody wants to know
  Planned current_;                    ///< the step that runs, whole or aside
  Planned ahead_;                      ///< the one after it, if it is in flight already
  LongStep long_;
  DraftPace draft_pace_;
  std::optional<TokenPredictor> predictor_;  ///< null: drafts are looked up alone
  bool handed_on_ = false;                   ///< to it, the step whose tokens come next
  double round_seconds_ = 0;                 ///< of it; 0: not known
  double predicting_seconds_ = 0;            ///< since the last step's end
  DrawPace draw_pace_;
  double step_seconds_ = 0;  ///< of the last one, without what was drawn of it
  static constexpr RequestId kNotPlanned = ~RequestId{0};
  std::atomic<RequestId> reads_{kNotPlanned};  ///< the one whose prompt is read, 0: several's, or no one's
  int64_t last_end_ns_ = 0;                    ///< of the step before this one; 0: there was a pause
  int64_t gave_up_behind_ = -1;                ///< so many steps the last one was given up that was
  EngineStats totals_;
  // What single functions work in.
  SamplerScratch scratch_;
  std::vector<uint32_t> allowed_;
  std::vector<TokenLogprob> logprobs_;
  std::vector<Draft> drafts_;
  std::vector<TokenPredictor::Ask> asks_;
  std::vector<DrawPace::Answer> answers_;
};

}  // namespace sluice::engine
