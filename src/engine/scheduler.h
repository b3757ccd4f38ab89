// Which rows the next step computes. Pure: knows sequences of tokens, pages of the cache and how long steps
// took; no device, no clock, no text.
//
// The rules. Clients wait in turn, each one's requests in their order; who is next waits until a place and
// pages for all its tokens are there, and nobody overtakes it. (One exception: while a running sequence
// computes pages that a waiting one will need too, or pages of it are brought from elsewhere, that one waits
// for them and lets others pass.) A step has
// one row of every sequence that writes, and then rows of prompts, in equal shares: as many as there may be
// of prompts (of one alone as its depth is worth), or, while somebody writes, as keep the step within
// max_itl. In steps without prompts answers may have rows of drafts behind theirs. Where steps can pause,
// prompts of more rows have long steps to themselves, which pause again and again for steps aside: of who
// writes, and of short prompts, so that nobody waits for the end of a long step who needs little. When pages
// run out the sequence admitted last of the client that has most running, and of that one's call, goes back
// to the head of the queue; what it computed stays cached as long as there is room. The one admitted first
// never gives up its pages, and the cache holds a whole context, so there is always progress.
// What runs is shared, too: while a client waits that has two sequences fewer running than another, the
// other's last one gives its place and pages to it and waits at the head of its own client's queue. A
// sequence that writes may rest (draw_pace.h): the step has no row of it.
// Where the program has states, steps of a prompt end where a snapshot of its state is worth having, and none
// with drafts goes beyond a page's end. What wrong drafts leave in a state cannot be taken out again: the
// state before them stays the sequence's, and its next rows are first those of the step that were right, once
// more.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/pace.h"
#include "engine/request.h"

namespace sluice::engine {

struct SchedulerOptions {
  int64_t context;        ///< tokens a sequence at most
  int32_t max_sequences;  ///< that run at once
  int64_t max_rows;       ///< a step at most, and at least max_sequences
  int64_t pages;          ///< of the cache; at least the context's
  double max_itl_seconds;
  int64_t shallow_rows = 0;  ///< of prompts a step at most, but for one alone and deep; 0: max_rows
  int64_t aside_rows = 0;    ///< a step aside at most, and at least max_sequences; 0: steps do not pause
  /// A long step takes so long at most, as the one before it went, but 512 rows in any case; 0: no limit.
  double long_step_seconds = 0;
  int64_t draft_rows = 0;  ///< a step at most that has drafts, answers' own rows among them
  /// Rows a step at most whose logits are wanted, and at least max_sequences and draft_rows; 0: max_rows.
  int64_t outputs = 0;
  /// For states of sequences: at least two for each that may run, and three if steps are to begin ahead; 0:
  /// the program has none.
  int64_t state_slots = 0;
};

/// Of pages that a waiting sequence begins with and that are elsewhere than on the device.
enum class Brought : uint8_t { Unasked, Coming, Done };

/// A sequence of tokens, waiting or running. It is its owner's, and stays where it is from add() to remove();
/// the owner fills in the first six.
struct Sequence {
  RequestId id = 0;
  std::string client;
  uint64_t call = 0;            ///< other sequences of the same one were asked for together
  std::vector<int32_t> tokens;  ///< the prompt, then what was drawn
  bool use_cache = true;
  PrefixGroup group = {};
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< of the prompt, when it was first admitted
  int32_t preemptions = 0;
  int32_t place = -1;                  ///< in the batch; -1: waiting
  SequencePages pages;                 ///< while it runs
  Brought brought = Brought::Unasked;  ///< before it runs
  int64_t brought_tokens = 0;          ///< that came from elsewhere
  bool in_long_step = false;
  bool rests =
      false;  ///< its owner's: it writes, but not in the next plan, unless nobody else has rows there
  /// Its owner's: of its prompt's rows from this position on the logits are wanted, so that they are
  /// computed, as many a step as there may be; none: kNoScores.
  int64_t scored_from = kNoScores;
  static constexpr int64_t kNoScores = std::numeric_limits<int64_t>::max();
  /// Its owner's: so many tokens may follow the last one of a sequence that writes, and the next plan, or the
  /// next one aside, may have rows for them.
  int64_t drafted = 0;
  /// Rows of its answer that were computed, in a step whose state is not the sequence's: some drafts were
  /// wrong.
  int64_t replayed = 0;
  int64_t undecided = 0;  ///< drafts of that step of which it is not known yet whether they are right

  int64_t uncomputed() const { return std::ssize(tokens) - pages.rows; }
  /// Whether it has rows of a prompt to compute, or of what it said before it was preempted.
  bool reads() const { return uncomputed() > 1 + replayed; }
  bool scored() const { return scored_from != kNoScores; }
  bool scored(int64_t position) const { return position >= scored_from && position + 1 < prompt_tokens; }
};

/// Consecutive rows of one sequence in a step. The last one's logits are wanted if it is the sequence's last,
/// and so are those of drafted tokens, whose rows come behind it, and of rows that are scored.
struct Chunk {
  Sequence* sequence;
  int64_t first;  ///< position
  int64_t rows;
  int64_t drafts = 0;    ///< further rows
  bool replays = false;  ///< all but the last are an answer's, once more
  /// Whether they are an answer's, or as few.
  bool answers() const { return rows == 1 || replays; }
  bool last() const { return first + rows == std::ssize(sequence->tokens); }
};

/// Who brings such pages to the cache.
class PageSource {
 public:
  virtual ~PageSource() = default;
  /// Asked while a place and pages are there for the sequence. `known`: the tokens whose rows it may take
  /// over, and one more; `running`: sequences, for each of which a page stays available. Whether it is to
  /// wait; `brought` says whether to ask again.
  virtual bool bring(Sequence& sequence, std::span<const int32_t> known, int64_t running) = 0;
  /// One whose pages are Coming needs them no more.
  virtual void drop(Sequence& sequence) = 0;
  /// Sequences whose pages are Coming.
  virtual int64_t coming() const = 0;
  /// For tests: pages that are neither free, nor in the tree, nor a sequence's; and pages in the tree that
  /// are held, once a hold.
  virtual int64_t own_pages() const = 0;
  virtual std::vector<int32_t> held() const = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  /// A sequence begins to wait. Its prompt has 1 to context tokens.
  void add(Sequence& sequence);
  /// A sequence ends, wherever it is; not between plan() and computed(), nor in a long step that has not
  /// ended, unless the step was given up.
  void remove(Sequence& sequence);
  /// A token that was drawn for a running sequence all of whose tokens are computed.
  void append(Sequence& sequence, int32_t token);
  /// The token that was appended last is the one that was drafted for its place: its row is computed, too.
  void accept(Sequence& sequence);

  /// The rows of the next step, one chunk a sequence; empty if and only if there is nothing to do. Not before
  /// a long step has ended.
  std::span<const Chunk> plan();
  /// Whether what plan() gave last is a long step, which has not ended.
  bool long_step() const { return long_step_; }
  /// The rows of a step aside that runs now, before the long step goes on. May be empty.
  std::span<const Chunk> plan_aside();
  /// For how long the long step then goes on, after a step aside that took so many seconds.
  double long_step_seconds(double aside_seconds) const;
  /// The rows of running sequences that write, and no others: those of a step that has begun ahead. May be
  /// empty.
  std::span<const Chunk> plan_only_answers();
  /// Takes pages for one token more than a running sequence has, and a slot for the state behind it, in time
  /// for a step that begins ahead. False: there are none, or the sequence is as long as it may be.
  bool make_room_ahead(Sequence& sequence);
  /// The planned step ran and took so long. One that did not is planned anew.
  void computed(double seconds);
  void computed_aside(double seconds);
  /// The long step is over; if it was not computed, its rows are planned anew.
  void end_long_step();

  /// Those that run, in the order of their admission; those that the last plan() admitted are the last ones.
  std::span<Sequence* const> running() const { return running_; }
  std::span<Sequence* const> admitted() const { return admitted_; }
  int64_t waiting() const { return sequences_ - std::ssize(running_); }
  /// Whether the next plan may be another one than the rows of all who write: somebody waits for a place that
  /// another client has to give, or rests.
  bool owes() const;
  int64_t preemptions() const { return preemptions_; }
  const KvCache& cache() const { return cache_; }
  KvCache& cache() { return cache_; }
  /// From now on a sequence waits for pages that this brings. Null: nobody does.
  void set_source(PageSource* source) { source_ = source; }
  /// Sequences that wait for pages alone.
  int64_t coming() const { return source_ != nullptr ? source_->coming() : 0; }

  /// For tests: CHECKs everything that must always hold.
  void check() const;

 private:
  struct Client {
    std::string name;
    std::deque<Sequence*> waiting;
  };
  struct Plan {
    std::vector<Chunk> chunks;
    int64_t answer_rows = 0, prompt_rows = 0;  ///< drafts count as answers'
    double prompt_depth = 0;                   ///< where its prompts' rows begin, on average
  };

  Client& queue_of(const std::string& client);
  void make_room_for_answers();
  size_t preempt_one();
  void leave_place(Sequence& sequence);
  void admit_waiting();
  void share_places();
  Sequence* over_share(const std::string& client) const;
  Sequence* next_of(const Client& client);
  bool admit_next();
  bool admit(Sequence& sequence);
  bool waits_for_prefix(const Sequence& sequence);
  bool waits_for_pages(Sequence& sequence);
  void plan_answers(Plan& plan);
  void plan_drafts(Plan& plan, int64_t most_rows);
  void plan_prompts(Plan& plan, int64_t most);
  bool plan_long_step();
  int64_t step_rows() const;
  double readers_depth() const;
  void computed(const Plan& plan);

  SchedulerOptions options_;
  KvCache cache_;
  PageSource* source_ = nullptr;
  Pace pace_;
  int64_t sequences_ = 0;                      // waiting and running
  std::vector<Sequence*> running_;             // in the order of admission
  std::deque<Sequence*> preempted_;            // in the order of their first admission
  std::list<Client> clients_;                  // that have waiting requests; the next in turn first
  std::map<std::string, int64_t> running_of_;  // sequences, by client; none has 0
  std::vector<int32_t> places_;                // free ones
  Plan plan_, aside_;
  bool long_step_ = false;
  double long_row_seconds_ = 0;     // of the last long step; 0: there was none
  std::vector<Sequence*> readers_;  // those with more than one row to compute
  std::vector<Sequence*> admitted_;
  int64_t preemptions_ = 0;
};

}  // namespace sluice::engine
