#include "engine/scheduler.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.h"

namespace sluice::engine {

using program::kPageRows;

namespace {

/// How many waiting sequences are looked at in a step, to find one that need not wait for another's pages.
constexpr int kLookedAt = 64;

/// Rows that a long step may have however long it takes.
constexpr int64_t kLeastLongRows = 512;

/// Steps aside that a prompt needs at most of those that need not wait for the next long step.
constexpr int64_t kShortPrompt = 4;

/// Of max_itl, for a step aside with rows of prompts: the long step may have the rest.
constexpr double kAsideShare = 0.5;
/// How long it goes on, as a multiple of what the step aside took: at most four times as long, as answers
/// that are written at a fifth of their speed lose less by more than prompts gain; and at least so long that
/// it ends some day.
constexpr double kMostLong = 4, kLeastLong = 0.25;

double pace_seconds(const SchedulerOptions& options) {
  return options.max_itl_seconds * (options.aside_rows > 0 ? kAsideShare : 1.0);
}

/// The tokens whose rows a sequence may take over where they are cached, and one more: that is computed in
/// any case, and so is what is scored.
std::span<const int32_t> reusable(const Sequence& sequence) {
  const std::span<const int32_t> tokens = sequence.tokens;
  if (!sequence.use_cache) return tokens.last(1);
  if (sequence.scored_from >= std::ssize(tokens)) return tokens;
  return tokens.first(static_cast<size_t>(sequence.scored_from) + 1);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      cache_(static_cast<int32_t>(options.pages), options.state_slots),
      pace_(pace_seconds(options)) {
  CHECK(options.max_sequences > 0 && options.max_rows >= options.max_sequences, "{} rows", options.max_rows);
  CHECK(options.aside_rows == 0 || options.aside_rows >= options.max_sequences, "{} rows aside",
        options.aside_rows);
  if (options_.outputs == 0) options_.outputs = options_.max_rows;
  CHECK(options_.outputs >= options_.max_sequences, "{} outputs", options_.outputs);
  CHECK(options.pages >= KvPool::pages_for(options.context), "{} pages", options.pages);
  const bool has_states = options.state_slots > 0;
  const int64_t least_slots = StatePool::least_slots(options.max_sequences);
  CHECK(!has_states || options.state_slots >= least_slots, "{} slots of states", options.state_slots);
  // With states what a step with drafts had may be computed once more, beside a row of everybody else.
  const int64_t rows = options.aside_rows > 0 ? options.aside_rows : options.max_rows;
  if (has_states) options_.draft_rows = std::min(options.draft_rows, rows - options.max_sequences + 1);
  for (int32_t place = options.max_sequences; place-- > 0;) places_.push_back(place);
  running_.reserve(places_.size());
  readers_.reserve(places_.size());
  admitted_.reserve(places_.size());
  for (Plan* plan : {&plan_, &aside_}) plan->chunks.reserve(places_.size());
}

void Scheduler::add(Sequence& sequence) {
  CHECK(!sequence.tokens.empty() && std::ssize(sequence.tokens) <= options_.context, "{} tokens",
        sequence.tokens.size());
  sequence.prompt_tokens = std::ssize(sequence.tokens);
  queue_of(sequence.client).waiting.push_back(&sequence);
  ++sequences_;
}

Scheduler::Client& Scheduler::queue_of(const std::string& client) {
  auto own = std::ranges::find(clients_, client, &Client::name);
  if (own == clients_.end()) own = clients_.insert(own, Client{client, {}});
  return *own;
}

void Scheduler::remove(Sequence& sequence) {
  CHECK(!sequence.in_long_step, "request {}", sequence.id);
  if (sequence.brought == Brought::Coming) source_->drop(sequence);
  if (sequence.place >= 0) {
    leave_place(sequence);
  } else if (std::erase(preempted_, &sequence) == 0) {
    const auto own = std::ranges::find(clients_, sequence.client, &Client::name);
    CHECK(own != clients_.end() && std::erase(own->waiting, &sequence) == 1, "request {}", sequence.id);
    if (own->waiting.empty()) clients_.erase(own);
  }
  --sequences_;
}

void Scheduler::append(Sequence& sequence, int32_t token) {
  CHECK(sequence.place >= 0 && sequence.uncomputed() == sequence.replayed, "request {}", sequence.id);
  CHECK(std::ssize(sequence.tokens) < options_.context, "request {}", sequence.id);
  sequence.tokens.push_back(token);
}

void Scheduler::accept(Sequence& sequence) {
  CHECK(sequence.place >= 0 && sequence.uncomputed() == sequence.replayed + 1, "request {}", sequence.id);
  ++sequence.replayed;
  if (sequence.undecided > 0 && --sequence.undecided > 0) return;
  cache_.computed(sequence.pages, sequence.tokens, sequence.pages.rows + std::exchange(sequence.replayed, 0));
}

std::span<const Chunk> Scheduler::plan() {
  CHECK(!long_step_, "a long step has not ended");
  make_room_for_answers();
  admit_waiting();
  share_places();
  plan_answers(plan_);
  plan_drafts(plan_, options_.max_rows);
  long_step_ = plan_long_step();
  plan_prompts(plan_, step_rows());
  if (plan_.chunks.empty() && owes()) {  // those who do not rest have lost their places
    for (Sequence* sequence : running_) sequence->rests = false;
    plan_answers(plan_);
  }
  if (long_step_)
    for (Sequence* sequence : readers_) sequence->in_long_step = true;
  CHECK(!plan_.chunks.empty() || sequences_ == 0 || coming() > 0, "{} sequences wait for nothing",
        sequences_);
  return plan_.chunks;
}

// Nobody is preempted: an answer for whose next token there is no page waits for the next step that is not
// aside.
std::span<const Chunk> Scheduler::plan_aside() {
  CHECK(long_step_, "there is no long step");
  admit_waiting();
  plan_answers(aside_);
  const int64_t short_prompt = kShortPrompt * options_.aside_rows;
  std::erase_if(readers_, [=](const Sequence* s) { return !s->scored() && s->uncomputed() > short_prompt; });
  plan_drafts(aside_, options_.aside_rows);
  plan_prompts(aside_, options_.aside_rows - aside_.answer_rows);
  return aside_.chunks;
}

double Scheduler::long_step_seconds(double aside_seconds) const {
  return std::max(std::min(options_.max_itl_seconds - aside_seconds, kMostLong * aside_seconds),
                  kLeastLong * aside_seconds);
}

std::span<const Chunk> Scheduler::plan_only_answers() {
  make_room_for_answers();
  admitted_.clear();
  plan_answers(plan_);
  return plan_.chunks;
}

bool Scheduler::make_room_ahead(Sequence& sequence) {
  const int64_t rows = std::ssize(sequence.tokens) + 1;
  const int64_t slots = StatePool::slots_ahead(options_.max_sequences);
  return rows <= options_.context && (!cache_.has_states() || options_.state_slots >= slots) &&
         cache_.grow(sequence.pages, rows) && cache_.take_slot_ahead(sequence.pages);
}

// Those admitted first get a page for what they write first.
void Scheduler::make_room_for_answers() {
  for (size_t i = 0; i < running_.size();) {
    Sequence* sequence = running_[i];
    bool runs = true;
    // Who reads has pages for all its tokens.
    while (runs && !sequence->reads() && !cache_.grow(sequence->pages, std::ssize(sequence->tokens))) {
      const size_t gone = preempt_one();
      runs = gone != i;
      if (gone < i) --i;
    }
    if (runs) ++i;
  }
}

// The place of who gave way among those that run: the last one of whoever has most of them, which is the one
// admitted first only if no other runs.
size_t Scheduler::preempt_one() {
  const auto most = std::ranges::max_element(running_of_, {}, [](const auto& own) { return own.second; });
  const auto of_client = [&](const Sequence* sequence) {
    return most->second == 1 || sequence->client == most->first;
  };
  std::map<uint64_t, int64_t> calls;
  int64_t most_of_call = 0;
  for (const Sequence* sequence : running_)
    if (of_client(sequence)) most_of_call = std::max(most_of_call, ++calls[sequence->call]);
  size_t at = running_.size() - 1;
  while (!of_client(running_[at]) || calls[running_[at]->call] < most_of_call) --at;
  Sequence* last = running_[at];
  leave_place(*last);
  ++last->preemptions;
  ++preemptions_;
  preempted_.push_front(last);
  return at;
}

void Scheduler::leave_place(Sequence& sequence) {
  cache_.close(sequence.pages, sequence.tokens);
  places_.push_back(std::exchange(sequence.place, -1));
  std::erase(running_, &sequence);
  std::erase(admitted_, &sequence);
  sequence.drafted = sequence.replayed = sequence.undecided = 0;
  sequence.rests = false;
  sequence.brought = Brought::Unasked;
  const auto own = running_of_.find(sequence.client);
  if (--own->second == 0) running_of_.erase(own);
}

void Scheduler::admit_waiting() {
  admitted_.clear();
  while (!places_.empty() && !preempted_.empty()) {
    if (waits_for_pages(*preempted_.front()) || !admit(*preempted_.front())) return;
    preempted_.pop_front();
  }
  while (!places_.empty() && admit_next()) {
  }
}

// The sequence that is to give way to one of this client's: the last one of whoever has most running, if they
// are more by two. Null: none.
Sequence* Scheduler::over_share(const std::string& client) const {
  const auto most = std::ranges::max_element(running_of_, {}, [](const auto& own) { return own.second; });
  const auto own = running_of_.find(client);
  const int64_t has = own == running_of_.end() ? 0 : own->second;
  if (most == running_of_.end() || most->second < has + 2) return nullptr;
  const auto last = std::find_if(running_.rbegin(), running_.rend(),
                                 [&](const Sequence* sequence) { return sequence->client == most->first; });
  return *last;
}

bool Scheduler::owes() const {
  return std::ranges::any_of(running_, [](const Sequence* sequence) { return sequence->rests; }) ||
         std::ranges::any_of(clients_, [this](const Client& client) { return over_share(client.name); });
}

// The client's first sequence that waits for nobody's prefix; null: there is none among the first ones.
Sequence* Scheduler::next_of(const Client& client) {
  for (size_t i = 0; i < std::min<size_t>(client.waiting.size(), kLookedAt); ++i)
    if (!waits_for_prefix(*client.waiting[i]) && !waits_for_pages(*client.waiting[i]))
      return client.waiting[i];
  return nullptr;
}

// Gives clients that wait and have too little of what runs what others have too much of. Who got it before
// its turn comes last; for whom there is not enough yet is the next in turn.
void Scheduler::share_places() {
  if (running_of_.empty() || (running_of_.size() == 1 && clients_.size() == 1 &&
                              running_of_.begin()->first == clients_.front().name))
    return;
  for (auto client = clients_.begin(); client != clients_.end();) {
    const auto at = client++;
    while (!at->waiting.empty() && over_share(at->name) != nullptr) {
      Sequence* next = next_of(*at);
      if (next == nullptr) break;
      clients_.splice(clients_.begin(), clients_, at);
      bool admitted = !places_.empty() && admit(*next);
      while (!admitted) {
        Sequence* last = over_share(at->name);
        if (last == nullptr) return;
        leave_place(*last);
        ++last->preemptions;
        ++preemptions_;
        queue_of(last->client).waiting.push_front(last);
        admitted = admit(*next);
      }
      std::erase(at->waiting, next);
    }
    if (at->waiting.empty()) clients_.erase(at);
  }
}

// Admits the next in turn; false: there is none, or it has to wait.
bool Scheduler::admit_next() {
  int looked_at = 0;
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    for (auto next = client->waiting.begin(); next != client->waiting.end(); ++next) {
      if (++looked_at > kLookedAt) return false;
      if (waits_for_prefix(**next) || waits_for_pages(**next)) continue;
      if (!admit(**next)) return false;
      client->waiting.erase(next);
      clients_.splice(clients_.end(), clients_, client);
      if (clients_.back().waiting.empty()) clients_.pop_back();
      return true;
    }
  }
  return false;
}

bool Scheduler::admit(Sequence& sequence) {
  const std::span<const int32_t> known = reusable(sequence);
  const auto rows = std::ssize(sequence.tokens);
  // A page more for each that runs, so that nobody is admitted only to be preempted again.
  if (cache_.offer(known, rows, sequence.group).pages + std::ssize(running_) > cache_.available())
    return false;
  sequence.pages = cache_.open(known, sequence.group);
  CHECK(cache_.grow(sequence.pages, rows), "{} rows", rows);
  if (sequence.preemptions == 0) sequence.cached_tokens = sequence.pages.rows;
  sequence.place = places_.back();
  places_.pop_back();
  running_.push_back(&sequence);
  ++running_of_[sequence.client];
  admitted_.push_back(&sequence);
  return true;
}

// Whether a running sequence will compute a page that this one needs, and that it would have to compute
// itself if it were admitted now.
bool Scheduler::waits_for_prefix(const Sequence& sequence) {
  const std::span<const int32_t> tokens = reusable(sequence);
  int64_t cached = -1;
  for (const Sequence* other : running_) {
    if (!other->reads() || other->group.pages != sequence.group.pages) continue;
    const auto agree =
        std::mismatch(tokens.begin(), tokens.end() - 1, other->tokens.begin(), other->tokens.end()).first -
        tokens.begin();
    const int64_t common = agree / kPageRows * kPageRows;
    if (common <= other->pages.rows / kPageRows * kPageRows) continue;
    if (!cache_.leaves(common, std::ssize(other->tokens))) continue;
    if (cached < 0) cached = cache_.offer(tokens, 1, sequence.group).rows;
    if (common > cached) return true;
  }
  return false;
}

// Whether pages of this one are on their way, which nobody is asked for before they have room.
bool Scheduler::waits_for_pages(Sequence& sequence) {
  if (source_ == nullptr || !sequence.use_cache || sequence.brought == Brought::Done) return false;
  if (sequence.brought == Brought::Coming) return true;
  const std::span<const int32_t> known = reusable(sequence);
  const auto running = std::ssize(running_);
  const int64_t pages = cache_.offer(known, std::ssize(sequence.tokens), sequence.group).pages;
  return pages + running <= cache_.available() && source_->bring(sequence, known, running);
}

// Rows that the next step takes at most of the readers' prompts. What is before a step's rows costs it
// something however many they are (where attention goes past latent space, the keys and values of all of it
// are made once a step), so a prompt that is read alone goes in larger steps the deeper they begin; but in
// none that takes much longer than what was before it, nor longer than who comes while it runs may have to
// wait.
int64_t Scheduler::step_rows() const {
  const auto whole_pages = [](auto rows) { return static_cast<int64_t>(rows) / kPageRows * kPageRows; };
  int64_t rows = options_.shallow_rows > 0 ? options_.shallow_rows : options_.max_rows;
  if (readers_.size() == 1) rows = std::max(rows, whole_pages(readers_.front()->pages.rows / 2));
  if (options_.long_step_seconds > 0) {
    const double in_time = long_row_seconds_ > 0 ? options_.long_step_seconds / long_row_seconds_ : 0;
    rows = std::min(rows, std::max(kLeastLongRows, whole_pages(std::min(in_time, 1e9))));
  }
  return std::min(rows, options_.max_rows);
}

// Begins a plan with a row of everybody who writes, and finds who reads, the shortest prompts first, but for
// those that are scored, which have few rows a step however long they are.
void Scheduler::plan_answers(Plan& plan) {
  plan.chunks.clear();
  plan.answer_rows = plan.prompt_rows = 0;
  plan.prompt_depth = 0;
  readers_.clear();
  for (Sequence* sequence : running_) {
    CHECK(sequence->uncomputed() > 0, "request {}: nobody appended its token", sequence->id);
    if (sequence->in_long_step) continue;
    if (sequence->reads()) {
      readers_.push_back(sequence);
      continue;
    }
    if (sequence->rests) continue;
    if (!cache_.grow(sequence->pages, std::ssize(sequence->tokens))) continue;
    const int64_t rows = sequence->uncomputed();
    plan.chunks.push_back({sequence, sequence->pages.rows, rows, 0, rows > 1});
    plan.answer_rows += rows;
  }
  std::ranges::sort(readers_, {},
                    [](const Sequence* s) { return std::tuple(!s->scored(), s->uncomputed(), s->id); });
}

// Adds rows for drafts, where the step has no prompts and there are pages.
void Scheduler::plan_drafts(Plan& plan, int64_t most_rows) {
  for (Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    // Who was admitted since they were drafted may have taken some of the rows.
    const int64_t room = std::min(most_rows, options_.draft_rows) - plan.answer_rows;
    const int64_t until = cache_.end_of_drafts(sequence.pages);
    const int64_t drafts = std::min({sequence.drafted, room, until - std::ssize(sequence.tokens)});
    const int64_t rows = std::ssize(sequence.tokens) + drafts;
    if (!readers_.empty() || drafts <= 0 || rows > options_.context || !cache_.grow(sequence.pages, rows))
      continue;
    chunk.drafts = drafts;
    plan.answer_rows += drafts;
  }
  for (Sequence* sequence : running_)
    sequence->drafted = 0;  // also of who has no page, and is not in the plan
}

// Whether the next step is a long one: its prompts have more rows than a step aside has room for. Then they
// are all that stays in the plan, and in readers_: without the shortest, as many as go into a step aside
// together, and without those that are scored.
bool Scheduler::plan_long_step() {
  if (options_.aside_rows == 0 || readers_.empty()) return false;
  int64_t rows = 0;
  for (const Sequence* sequence : readers_) rows += sequence->scored() ? 0 : sequence->uncomputed();
  int64_t room = options_.aside_rows - plan_.answer_rows;
  if (plan_.answer_rows > 0) room = std::min(room, pace_.prompt_rows(plan_.answer_rows, readers_depth()));
  if (rows <= room) return false;
  size_t aside = 0;
  for (; aside + 1 < readers_.size(); ++aside) {
    if (readers_[aside]->scored()) continue;
    if (readers_[aside]->uncomputed() > room) break;
    room -= readers_[aside]->uncomputed();
  }
  readers_.erase(readers_.begin(), readers_.begin() + static_cast<std::ptrdiff_t>(aside));
  plan_.chunks.clear();
  plan_.answer_rows = 0;
  return true;
}

// Where the readers' next rows begin, on average.
double Scheduler::readers_depth() const {
  double depth = 0;
  for (const Sequence* sequence : readers_)
    depth += static_cast<double>(sequence->pages.rows) / static_cast<double>(readers_.size());
  return depth;
}

// Adds the readers' rows, `most` together, in equal shares; what a short prompt does not need goes to the
// longer ones. So are the outputs shared among those that are scored; every reader has one in any case, for
// its last row.
void Scheduler::plan_prompts(Plan& plan, int64_t most) {
  auto left = std::ssize(readers_);
  plan.prompt_depth = readers_depth();
  if (plan.answer_rows > 0) most = std::min(most, pace_.prompt_rows(plan.answer_rows, plan.prompt_depth));
  int64_t room = std::min(options_.max_rows - plan.answer_rows, std::max(left, most));
  int64_t outputs = options_.outputs - plan.answer_rows - left;
  auto scored = std::ranges::count_if(readers_, [](const Sequence* s) { return s->scored(); });
  for (Sequence* sequence : readers_) {
    const int64_t first = sequence->pages.rows;
    int64_t share = std::min(sequence->uncomputed(), room / left--);
    if (sequence->scored()) {
      const int64_t unscored = std::max(sequence->scored_from - first, int64_t{0});
      share = std::min(share, unscored + 1 + outputs / std::max<int64_t>(scored--, 1));
    }
    const int64_t rows =
        cache_.end_of_step(sequence->pages, std::ssize(sequence->tokens), first + share) - first;
    if (sequence->scored())
      outputs -= std::max(rows - std::max(sequence->scored_from - first, int64_t{0}) - 1, int64_t{0});
    plan.chunks.push_back({sequence, first, rows});
    room -= rows;
    plan.prompt_rows += rows;
  }
}

void Scheduler::computed(double seconds) {
  computed(plan_);
  if (long_step_) long_row_seconds_ = seconds / static_cast<double>(plan_.prompt_rows);
  // How long a step of many rows takes says little of few beside answers.
  if (!long_step_ || plan_.prompt_rows <= options_.aside_rows)
    pace_.observe(plan_.answer_rows, plan_.prompt_rows, plan_.prompt_depth, seconds);
  end_long_step();
}

void Scheduler::computed_aside(double seconds) {
  computed(aside_);
  pace_.observe(aside_.answer_rows, aside_.prompt_rows, aside_.prompt_depth, seconds);
}

void Scheduler::computed(const Plan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    const bool open = cache_.has_states() && chunk.drafts > 0;
    sequence.replayed = open ? chunk.rows : 0;
    sequence.undecided = open ? chunk.drafts : 0;
    if (!open) cache_.computed(sequence.pages, sequence.tokens, chunk.first + chunk.rows);
  }
}

void Scheduler::end_long_step() {
  long_step_ = false;
  for (Sequence* sequence : running_) sequence->in_long_step = false;
}

void Scheduler::check() const {
  std::vector<const SequencePages*> open;
  std::set<int32_t> places(places_.begin(), places_.end());
  for (const Sequence* sequence : running_) {
    open.push_back(&sequence->pages);
    CHECK(places.insert(sequence->place).second, "place {}", sequence->place);
  }
  cache_.check(open, source_ != nullptr ? source_->own_pages() : 0,
               source_ != nullptr ? source_->held() : std::vector<int32_t>());
  std::map<std::string, int64_t> running_of;
  for (const Sequence* sequence : running_) ++running_of[sequence->client];
  CHECK(running_of == running_of_, "{} clients run", running_of_.size());
  CHECK(std::ssize(places) == options_.max_sequences, "{} places", places.size());
  auto waiting = std::ssize(preempted_);
  for (const Client& client : clients_) {
    CHECK(!client.waiting.empty(), "client {}", client.name);
    waiting += std::ssize(client.waiting);
  }
  CHECK(waiting == this->waiting(), "{} wait, expected {}", waiting, this->waiting());
}

}  // namespace sluice::engine
