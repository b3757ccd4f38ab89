// The engine that serves many requests at once: one thread that owns an executable and steps it while there
// is work. Knows requests, tokens and steps; neither HTTP nor JSON nor which backend runs a step. What a step
// holds is decided by the scheduler (scheduler.h), what becomes of its logits by the batcher (batcher.h);
// here are the thread, its inbox and its end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "events/block_event.h"
#include "program/expert_slots.h"
#include "store/page_store.h"

namespace sluice::program {
class Executable;
}
namespace sluice::text {
class Tokenizer;
}

namespace sluice::engine {

struct EngineOptions {
  int64_t context = 4096;      ///< tokens of a sequence at most, prompt and answer
  int32_t max_sequences = 32;  ///< that run at once
  int64_t max_rows = 512;      ///< rows a step at most: the executable's
  int64_t shallow_rows = 0;    ///< of prompts, but for a deep one alone; 0: max_rows
  /// What a step that pauses may take, if it has more than 512 rows: another long prompt waits for its end.
  /// 0: no limit.
  double long_step_seconds = 0;
  /// Pages of the cache, all sequences and cached prefixes together: the executable's. At least context's
  /// own.
  int64_t pages = 64;
  /// Slots for states, where the program has any: the executable's (CompileOptions). At least two for each
  /// sequence.
  int64_t state_slots = 4;
  /// What a step may take in milliseconds while answers are being written: a prompt is read in pieces that
  /// keep to it.
  double max_itl_ms = 1000;
  int64_t max_waiting = 1024;  ///< requests that wait at most; more are refused
  /// Tokens that are drafted for an answer at most (prompt_lookup.h), so that one step computes several of
  /// its tokens where the draft is right; up to DraftPace::kMostRows - 1, and the executable has
  /// outputs() output rows. What is answered does not depend on it. 0: none. No more than pay on the
  /// executable (Facts::draft_rows).
  int64_t draft_tokens = 0;
  /// Whether drafts are looked up in what was said.
  bool look_up = true;
  /// The model's block of multi-token prediction (token_predictor.h), which drafts, too: compiled for as many
  /// rows, sequences' outputs and pages as the executable, which leaves hidden states; nobody else uses it,
  /// and it outlives the engine. Null: there is none.
  program::Executable* predictor = nullptr;
  /// Rows a step at most of prompts whose tokens' log-probabilities are wanted (Request::prompt_logprobs); no
  /// more than max_rows. The executable has outputs() output rows.
  int64_t scored_rows = 0;
  /// Drafts are as long as though every step took the same time, all draws as though they took none, and
  /// pages are brought from the store whatever computing them takes: for tests, which no clock may decide.
  bool timeless = false;

  /// Output rows a step at most.
  int64_t outputs() const { return std::max({int64_t{max_sequences}, 1 + draft_tokens, scored_rows}); }
};

/// What runs in one place of the batch.
struct SlotStats {
  RequestId id = 0;             ///< 0: free
  int64_t prompt_tokens = 0;    ///< of which ...
  int64_t computed_tokens = 0;  ///< ... have rows in the cache, answers' tokens included
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t brought_tokens = 0;  ///< of those cached: from the host's memory or a disk
};

/// A snapshot. Totals count from the engine's start.
struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0;  ///< = free + used + cached
  int64_t page_tokens = 0;
  int64_t free_pages = 0;  ///< hold nothing
  int64_t used_pages = 0;  ///< of sequences that run
  int64_t cached_pages =
      0;  ///< of prefixes that nobody uses now: given up, the oldest first, when pages are needed
  int64_t requests_total = 0;
  int64_t prompt_tokens_total = 0;  ///< of requests that left the queue
  int64_t cached_tokens_total = 0;  ///< of those: taken from the cache
  int64_t generated_tokens_total = 0;
  int64_t prefix_hits_total = 0;      ///< requests of which something was cached
  int64_t draft_tokens_total = 0;     ///< that had rows in steps
  int64_t accepted_tokens_total = 0;  ///< of those: were right
  int64_t preemptions_total = 0;
  int64_t steps_total = 0, rows_total = 0;
  int64_t prompt_rows_total = 0;                    ///< of rows_total: prompts'
  double step_seconds_total = 0;                    ///< all the time in which there was work
  std::array<int64_t, kFinishes> finished_total{};  ///< by Finish
  std::vector<SlotStats> slots;
  bool has_store = false;           ///< whether pages are kept elsewhere than on the device ...
  store::StoreStats store = {};     ///< ... and what is there
  int64_t brought_pages_total = 0;  ///< from there to the device
  program::ExpertUse experts = {};  ///< of which the device has copies; of layers 0: there are none
};

class Engine {
 public:
  /// The executable must have been compiled for these options' max_rows, outputs() and pages;
  /// nobody else uses it while the engine lives. `store`: where pages of the cache go that leave the device,
  /// and come from; null: nowhere. `sink`: who hears of blocks that enter and leave the cache, on the
  /// engine's thread; null: nobody. All of them must outlive the engine.
  Engine(program::Executable& executable, const text::Tokenizer& tokenizer, const EngineOptions& options,
         store::PageStore* store = nullptr, events::Sink* sink = nullptr);
  /// Stops as stop() does.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineOptions& options() const;

  /// Takes a request; the listener hears of it until its on_end(), and is then let go. Throws
  /// ContextExceeded, Unavailable, or Error for a request that makes no sense, and then the listener hears
  /// nothing. From any thread.
  RequestId submit(Request request, std::shared_ptr<Listener> listener);
  /// Ends a request after the step that runs, if it has not ended yet; its listener still hears on_end(). A
  /// step that reads its prompt and no other's is given up, and what others need of it computed again; one
  /// that pauses, and has others' rows, too, keeps the request until its end. From any thread.
  void cancel(RequestId id);
  /// Forgets cached prefixes that no request uses now, on the device and in the store; then calls `done`, on
  /// the engine's thread. From any thread.
  void clear_cache(std::function<void()> done);
  /// After the last step, and whatever has ended since: who has heard on_end() finds that request gone.
  EngineStats stats() const;
  /// Why no step runs any more, until the end of this engine: its device, or its memory. Empty: all is well.
  std::string failure() const;

  /// From now on submit() throws Unavailable; what was taken before goes on.
  void close();
  /// close(), then waits until everything has ended. False: it had not after so many seconds.
  bool drain(double seconds);
  /// close(), and ends everything, with Finish::Shutdown, after giving up the step that runs. When it returns
  /// no listener is called any more. Not from a listener.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::engine
