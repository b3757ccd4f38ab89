#include "engine/batcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/logprobs.h"
#include "text/constraint.h"

namespace sluice::engine {
namespace {

constexpr auto kFew = static_cast<size_t>(program::kLikeliest);

/// The one sequence that has more than a row, or 0.
RequestId only_reader(std::span<const Chunk> chunks) {
  RequestId reader = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.rows == 1) continue;
    if (reader != 0) return 0;
    reader = chunk.sequence->id;
  }
  return reader;
}

}  // namespace

Batcher::Batcher(program::Executable& executable, const text::Tokenizer& tokenizer,
                 const EngineOptions& options)
    : executable_(executable),
      tokenizer_(tokenizer),
      options_(options),
      scheduler_({options.context, options.max_sequences, options.max_rows, options.pages,
                  options.max_itl_ms * 1e-3, options.shallow_rows, executable.aside_rows(),
                  options.long_step_seconds, options.draft_tokens + 1}),
      batch_(options.max_rows, options.max_sequences,
             static_cast<int32_t>(KvPool::pages_for(options.context))),
      long_{Batch(executable.aside_rows() > 0 ? options.max_rows : 0, options.max_sequences,
                  static_cast<int32_t>(KvPool::pages_for(options.context)))},
      columns_(static_cast<size_t>(executable.program()[executable.program().output()].columns())),
      vocabulary_(std::min(columns_, static_cast<size_t>(tokenizer.size()))),
      scratch_(vocabulary_),
      allowed_((vocabulary_ + 31) / 32) {
  const auto outputs = static_cast<size_t>(options.outputs());
  const size_t most = outputs * columns_;
  logits_ = executable.logits_memory();
  if (logits_.size() < most) {
    own_logits_.resize(most);
    logits_ = own_logits_;
  }
  if (executable.finds_likeliest() && columns_ == vocabulary_) likeliest_.resize(outputs * kFew);
  drawn_.resize(outputs);
  for (auto* list : {&outputs_, &long_.outputs}) list->reserve(outputs);
  whole_.reserve(outputs);
  drafts_.reserve(static_cast<size_t>(DraftPace::kMostRows));
  jobs_.reserve(static_cast<size_t>(options.max_waiting));
}

Batcher::~Batcher() {
  try {
    drop_ahead();
  } catch (const std::exception&) {  // the device has failed, and said so in a step
  }
}

void Batcher::validate(const Request& request) const {
  if (request.prompt.empty()) fail("the prompt has no tokens");
  const auto tokens = std::ssize(request.prompt);
  if (tokens >= options_.context) throw ContextExceeded(tokens, options_.context);
  const auto known = static_cast<int32_t>(vocabulary_);
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= known) fail("the prompt has token {}, expected 0 to {}", token, known - 1);
  for (const auto& [token, unused] : request.sampling.logit_bias)
    if (token >= known) fail("logit_bias: token {}, expected 0 to {}", token, known - 1);
  if (request.max_tokens < -1) fail("max_tokens is {}, expected -1 (no limit) or more", request.max_tokens);
  if (request.top_logprobs < -1 || request.top_logprobs > Request::kMostTopLogprobs)
    fail("top_logprobs is {}, expected 0 to {}", request.top_logprobs, Request::kMostTopLogprobs);
  request.sampling.validate();
}

void Batcher::add(RequestId id, Request request, std::shared_ptr<Listener> listener, int64_t time_ns) {
  ++totals_.requests_total;
  text::StopStream stops(request.stops);
  std::vector<int32_t> prompt = std::move(request.prompt);
  PromptLookup lookup(std::move(request.prediction));
  const auto [at, added] = jobs_.try_emplace(
      id, Job{std::move(request), std::move(listener), std::move(stops), std::nullopt, std::move(lookup)});
  CHECK(added, "request {}", id);
  Job& job = at->second;
  job.added_ns = time_ns;
  job.result.prompt_tokens = std::ssize(prompt);
  scheduler_.add(id, std::move(prompt), job.request.client, job.request.use_cache);
  if (job.request.max_tokens == 0) finish(id, job, Finish::Length, {});
}

void Batcher::cancel(RequestId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  if (scheduler_.sequence(id).in_long_step) {
    if (reads_ != id) {
      found->second.cancelled = true;
      return;
    }
    give_up_long();
  }
  finish(id, found->second, Finish::Cancelled, {});
}

void Batcher::end_all(Finish how, std::string_view error) {
  if (scheduler_.long_step()) give_up_long();
  while (!jobs_.empty()) finish(jobs_.begin()->first, jobs_.begin()->second, how, error);
}

bool Batcher::step(const std::atomic<bool>* stop, const std::atomic<bool>* pause) {
  if (!scheduler_.long_step()) {
    const int64_t begin = now_ns();
    std::span<const Chunk> chunks = take_ahead();
    if (chunks.empty()) chunks = begin_planned();
    if (chunks.empty()) {
      last_end_ns_ = 0;
      return false;
    }
    if (!scheduler_.long_step()) {
      step_whole(chunks, stop, begin);
      return true;
    }
  }
  step_long(stop, pause);
  return true;
}

void Batcher::step_whole(std::span<const Chunk> chunks, const std::atomic<bool>* stop, int64_t begin_ns) {
  if (begun_) begin_ahead(chunks);
  // Answers wait for one step that is given up, but not for one after the other.
  const bool answers = std::ranges::any_of(chunks, [](const Chunk& chunk) { return chunk.rows == 1; });
  gave_up_ = !end_batch(gave_up_ && answers ? nullptr : stop);
  reads_ = kNotPlanned;
  const int64_t end = now_ns();
  // From end to end: drawing the tokens of the step before is part of what its answers wait for.
  const double seconds = static_cast<double>(end - (last_end_ns_ > 0 ? last_end_ns_ : begin_ns)) * 1e-9;
  last_end_ns_ = end;
  if (gave_up_) return;
  totals_.step_seconds_total += seconds;
  scheduler_.computed(seconds);
  count_step(chunks);
  observe_answers(chunks, seconds);
  take_tokens(outputs_, end);
  if (scheduler_.running().empty()) drop_ahead();
}

// A step aside, if anybody needs one, and then some of the long step.
void Batcher::step_long(const std::atomic<bool>* stop, const std::atomic<bool>* pause) {
  const double aside = step_aside();
  program::StepInput input = long_.batch.input();
  input.turn = long_.ns > 0 ? program::Turn::Resumed : program::Turn::Whole;
  input.stop = stop;
  input.pause = pause;
  const int64_t begin = now_ns();
  if (aside > 0) {
    const auto share = static_cast<int64_t>(scheduler_.long_step_seconds(aside) * 1e9);
    input.pause_ns = begin + std::max(int64_t{0}, share - long_.late_ns);
  }
  const program::StepOutput output = run(input);
  last_end_ns_ = now_ns();
  totals_.step_seconds_total += static_cast<double>(last_end_ns_ - begin) * 1e-9;
  long_.ns += last_end_ns_ - begin;
  if (output.stopped) return give_up_long();
  if (!output.paused) return end_long(last_end_ns_);
  // It pauses between ops, and an op of many rows takes a while.
  if (last_end_ns_ > input.pause_ns)
    long_.late_ns = std::max(last_end_ns_ - input.pause_ns, long_.late_ns * 7 / 8);
}

// The seconds that it took; 0: nobody needs one.
double Batcher::step_aside() {
  draft();
  const std::span<const Chunk> chunks = scheduler_.plan_aside();
  begin_admitted();
  if (chunks.empty()) return 0;
  const int64_t begin = now_ns();
  fill_batch(chunks, batch_, outputs_);
  program::StepInput input = batch_.input();
  input.turn = program::Turn::Aside;
  run(input);
  const int64_t end = now_ns();
  const double seconds = static_cast<double>(end - begin) * 1e-9;
  totals_.step_seconds_total += seconds;
  scheduler_.computed_aside(seconds);
  count_step(chunks);
  observe_answers(chunks, seconds);
  take_tokens(outputs_, end);
  return seconds;
}

void Batcher::end_long(int64_t time_ns) {
  scheduler_.computed(static_cast<double>(long_.ns) * 1e-9);
  reads_ = kNotPlanned;
  count_step(long_.chunks);
  finish_cancelled();
  take_tokens(long_.outputs, time_ns);
}

void Batcher::give_up_long() {
  scheduler_.end_long_step();
  reads_ = kNotPlanned;
  finish_cancelled();
}

// Those of the long step that has just ended.
void Batcher::finish_cancelled() {
  for (const Chunk& chunk : long_.chunks) {
    const RequestId id = chunk.sequence->id;
    Job& job = jobs_.at(id);
    if (job.cancelled) finish(id, job, Finish::Cancelled, {});
  }
}

program::StepOutput Batcher::run(const program::StepInput& input) {
  few_ = begun_ = false;
  program::StepOutput output;
  output.logits = logits_.first(static_cast<size_t>(input.outputs()) * columns_);
  executable_.run(input, output);
  return output;
}

// Says what answers may go on with, as far as it is worth its time. Where an executable runs ahead, the next
// step has begun before this one's tokens are known.
void Batcher::draft() {
  const std::span<const Sequence* const> running = scheduler_.running();
  const auto takes_part = [](const Sequence* sequence) { return !sequence->in_long_step; };
  const int64_t rows = std::min(options_.draft_tokens + 1, options_.max_rows);
  if (std::ranges::count_if(running, takes_part) >= rows || executable_.runs_ahead()) return;
  drafts_.clear();
  for (const Sequence* sequence : running) {
    if (!takes_part(sequence)) continue;
    if (sequence->uncomputed() > 1) return;  // a prompt is read
    Job& job = jobs_.at(sequence->id);
    Draft& draft = drafts_.emplace_back();
    if (!job.request.use_drafts) continue;
    job.lookup.look(sequence->tokens);
    int64_t room = options_.context - std::ssize(sequence->tokens);
    if (job.request.max_tokens > 0)
      room = std::min(room, job.request.max_tokens - job.result.generated_tokens - 1);
    draft.chances = job.lookup.chances();
    draft.chances = draft.chances.first(std::min(draft.chances.size(), static_cast<size_t>(room)));
  }
  draft_pace_.choose(drafts_, rows);
  for (auto draft = drafts_.begin(); const Sequence* sequence : running)
    if (takes_part(sequence)) scheduler_.draft(sequence->id, (draft++)->length);
}

// What the scheduler plans, begun; empty: there is nothing to do.
std::span<const Chunk> Batcher::begin_planned() {
  draft();
  const std::span<const Chunk> chunks = scheduler_.plan();
  if (chunks.empty()) return chunks;
  begin_admitted();
  reads_ = only_reader(chunks);
  if (scheduler_.long_step()) {
    fill_batch(chunks, long_.batch, long_.outputs);
    long_.chunks = chunks;
    long_.ns = 0;
  } else {
    fill_batch(chunks, batch_, outputs_);
    begin_batch();
  }
  return chunks;
}

// The step that has begun ahead becomes the step that runs, if its rows are still what running sequences
// need: some may have ended. Empty: none has begun, or it was of no use and is forgotten.
std::span<const Chunk> Batcher::take_ahead() {
  if (ahead_.empty()) return {};
  const std::span<const Chunk> chunks = scheduler_.plan_only_answers();
  if (chunks.empty() || !match_ahead(chunks)) {
    drop_ahead();
    return {};
  }
  ahead_.clear();
  whole_.clear();
  begun_ = few_ = true;
  return chunks;
}

// Whether the step that has begun ahead has all of these rows, with the tokens that were drawn for them; then
// outputs_ says whose its rows are.
bool Batcher::match_ahead(std::span<const Chunk> chunks) {
  outputs_.assign(ahead_.size(), Output{0});
  size_t at = 0;
  for (const Chunk& chunk : chunks) {
    while (at < ahead_.size() && ahead_[at].id != chunk.sequence->id) ++at;
    if (at == ahead_.size() || ahead_[at].position != chunk.first ||
        chunk.sequence->tokens.back() != drawn_[ahead_[at].output])
      return false;
    outputs_[at].id = chunk.sequence->id;
  }
  return true;
}

// Begins the step after the one that runs, if the executable can draw all of its tokens and there are pages
// for them.
void Batcher::begin_ahead(std::span<const Chunk> chunks) {
  const auto follows = [this](const Chunk& chunk) {
    return chunk.rows == 1 && chunk.last() && likeliest_suffice(jobs_.at(chunk.sequence->id));
  };
  // Who waits for nothing but the next plan does not wait for ever.
  const bool full = std::ssize(scheduler_.running()) == options_.max_sequences;
  if ((scheduler_.waiting() > 0 && !full) || !std::ranges::all_of(chunks, follows)) return;
  next_.clear();
  size_t output = 0;
  for (const Chunk& chunk : chunks) {
    while (outputs_[output].id != chunk.sequence->id) ++output;
    if (!writes_on(jobs_.at(chunk.sequence->id))) continue;
    if (!scheduler_.make_room_ahead(chunk.sequence->id)) return;
    next_.push_back({chunk.sequence->id, chunk.first + 1, output});
  }
  if (next_.empty()) return;
  batch_.clear();
  for (const AheadRow& row : next_) {
    const Sequence& sequence = scheduler_.sequence(row.id);
    batch_.set_pages(sequence.place, sequence.pages.pages);
    batch_.add(program::following(static_cast<int32_t>(row.output)), static_cast<int32_t>(row.position),
               sequence.place, true, jobs_.at(row.id).sampler->draw_after(1));
  }
  executable_.begin(batch_.input());
  ahead_.swap(next_);
}

// Whether an answer goes on after the token that is being computed, unless that one ends it.
bool Batcher::writes_on(const Job& job) const {
  const int64_t generated = job.result.generated_tokens + 1;
  return generated != job.request.max_tokens && job.result.prompt_tokens + generated <= options_.context;
}

// Waits for the step that has begun ahead, if one has, and forgets it.
void Batcher::drop_ahead() {
  if (ahead_.empty()) return;
  ahead_.clear();
  executable_.end(likeliest_, drawn_);
}

// Only who runs has a sampler: with penalties it counts the whole vocabulary.
void Batcher::begin_admitted() {
  for (const RequestId id : scheduler_.admitted()) {
    Job& job = jobs_.at(id);
    if (job.admitted_ns > 0) continue;  // it was preempted and is back
    job.admitted_ns = now_ns();
    job.sampler.emplace(job.request.sampling, scratch_);
    for (const int32_t token : scheduler_.sequence(id).tokens) job.sampler->accept(token);
    job.result.queue_ns = job.admitted_ns - job.added_ns;
    job.result.cached_tokens = scheduler_.sequence(id).cached_tokens;
    totals_.prompt_tokens_total += job.result.prompt_tokens;
    totals_.cached_tokens_total += job.result.cached_tokens;
    totals_.prefix_hits_total += job.result.cached_tokens > 0;
    job.listener->on_prompt(id, job.result.cached_tokens, job.result.prompt_tokens);
  }
}

void Batcher::fill_batch(std::span<const Chunk> chunks, Batch& batch, std::vector<Output>& outputs) const {
  batch.clear();
  outputs.clear();
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    batch.set_pages(sequence.place, sequence.pages.pages);
    for (int64_t at = chunk.first; at < chunk.first + chunk.rows; ++at) {
      const bool wanted = at + 1 == std::ssize(sequence.tokens);
      const Job& job = jobs_.at(sequence.id);
      batch.add(sequence.tokens[static_cast<size_t>(at)], static_cast<int32_t>(at), sequence.place, wanted,
                wanted && likeliest_suffice(job) ? job.sampler->draw_after(0) : program::Draw{});
    }
    if (chunk.last()) outputs.push_back({sequence.id});
    for (int64_t i = 0; i < chunk.drafts; ++i) {
      const int64_t at = std::ssize(sequence.tokens) + i;
      const int32_t token = jobs_.at(sequence.id).lookup.found()[static_cast<size_t>(i)];
      batch.add(token, static_cast<int32_t>(at), sequence.place, true);
      outputs.push_back({sequence.id, at, token});
    }
  }
}

// The batch's step, if it had no rows of prompts.
void Batcher::observe_answers(std::span<const Chunk> chunks, double seconds) {
  if (std::ranges::all_of(chunks, [](const Chunk& chunk) { return chunk.rows == 1; }))
    draft_pace_.observe(batch_.rows(), options_.timeless_drafts ? 1 : seconds);
}

// A step that has ended: what it says of prompts is told.
void Batcher::count_step(std::span<const Chunk> chunks) {
  ++totals_.steps_total;
  for (const Chunk& chunk : chunks) {
    totals_.rows_total += chunk.rows + chunk.drafts;
    totals_.draft_tokens_total += chunk.drafts;
    if (chunk.drafts > 0) jobs_.at(chunk.sequence->id).result.draft_tokens += chunk.drafts;
    if (chunk.first >= chunk.sequence->prompt_tokens) continue;
    totals_.prompt_rows_total += chunk.rows;
    Job& job = jobs_.at(chunk.sequence->id);
    if (job.result.generated_tokens == 0)  // else it was preempted and reads again
      job.listener->on_prompt(chunk.sequence->id, chunk.first + chunk.rows, job.result.prompt_tokens);
  }
}

void Batcher::begin_batch() {
  whole_.clear();
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (!likeliest_suffice(jobs_.at(outputs_[i].id))) whole_.push_back(static_cast<int32_t>(i));
  few_ = !likeliest_.empty() &&
         (whole_.empty() || (executable_.keeps_logits() && whole_.size() < outputs_.size()));
  begun_ = few_ && whole_.empty() && !outputs_.empty() && executable_.runs_ahead();
  if (begun_) executable_.begin(batch_.input());
}

bool Batcher::end_batch(const std::atomic<bool>* stop) {
  if (begun_) {
    executable_.end(likeliest_, drawn_);
    return true;
  }
  program::StepOutput output;
  if (few_) {
    output.likeliest = std::span(likeliest_).first(outputs_.size() * kFew);
  } else {
    output.logits = logits_.first(outputs_.size() * columns_);
  }
  program::StepInput input = batch_.input();
  input.stop = stop;
  executable_.run(input, output);
  if (output.stopped) return false;
  if (few_ && !whole_.empty()) executable_.fetch_logits(whole_, logits_.first(whole_.size() * columns_));
  return true;
}

Batcher::Row Batcher::row(size_t i) const {
  if (!few_) return {logits_.subspan(i * columns_, vocabulary_), {}};
  const auto found = std::ranges::lower_bound(whole_, static_cast<int32_t>(i));
  if (found == whole_.end() || *found != static_cast<int32_t>(i))
    return {{}, std::span(likeliest_).subspan(i * kFew, kFew)};
  return {logits_.subspan(static_cast<size_t>(found - whole_.begin()) * columns_, vocabulary_), {}};
}

bool Batcher::likeliest_suffice(const Job& job) const {
  return job.request.constraint == nullptr && job.request.top_logprobs < 0 &&
         job.sampler->draws_from_likeliest();
}

// No token: the constraint leaves none.
std::optional<int32_t> Batcher::draw(Job& job, const Row& row) {
  text::TokenConstraint* constraint = job.request.constraint.get();
  std::span<const uint32_t> allowed;
  if (constraint != nullptr && constraint->allowed(allowed_)) {
    allowed = allowed_;
    if (std::ranges::all_of(allowed_, [](uint32_t word) { return word == 0; })) return std::nullopt;
  }
  const int32_t token =
      row.logits.empty() ? job.sampler->sample(row.likeliest) : job.sampler->sample(row.logits, allowed);
  if (constraint != nullptr && !constraint->accept(token)) return std::nullopt;
  job.sampler->accept(token);
  return token;
}

// outputs: whose logits the step has given. A drafted token's are worth something if it was right, and so was
// all that was drafted before it.
void Batcher::take_tokens(std::span<const Output> outputs, int64_t time_ns) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    const auto found = jobs_.find(output.id);
    if (found == jobs_.end()) continue;
    Job& job = found->second;
    if (output.drafted >= 0) {
      const std::span<const int32_t> tokens = scheduler_.sequence(output.id).tokens;
      if (std::ssize(tokens) != output.position + 1 || tokens.back() != output.drafted) continue;
      scheduler_.accept(output.id);
      ++job.result.accepted_tokens;
      ++totals_.accepted_tokens_total;
    }
    take_token(job, output.id, row(i), time_ns);
  }
}

void Batcher::take_token(Job& job, RequestId id, const Row& row, int64_t time_ns) {
  Result& result = job.result;
  const std::optional<int32_t> token = draw(job, row);
  if (!token)
    return finish(id, job, Finish::Error, "the constraint on the answer leaves no token that may follow");
  if (result.generated_tokens == 0) job.first_token_ns = time_ns;
  ++result.generated_tokens;
  ++totals_.generated_tokens_total;
  if (!job.request.ignore_end && tokenizer_.ends_generation(*token))
    return finish(id, job, Finish::EndToken, {});
  const std::string text = job.stops.push(job.utf8.push(tokenizer_.bytes(*token, job.request.show_special)));
  logprobs_.clear();
  if (job.request.top_logprobs >= 0)
    log_probabilities(row.logits, *token, job.request.top_logprobs, logprobs_);
  job.listener->on_token({id, *token, text, logprobs_, time_ns, result.generated_tokens - 1});
  if (job.stops.stopped()) return finish(id, job, Finish::StopString, {});
  if (result.generated_tokens == job.request.max_tokens) return finish(id, job, Finish::Length, {});
  // The token that was just drawn needs a row if it is to be followed by another.
  if (result.prompt_tokens + result.generated_tokens > options_.context)
    return finish(id, job, Finish::ContextFull, {});
  scheduler_.append(id, *token);
}

void Batcher::finish(RequestId id, Job& job, Finish how, std::string_view error) {
  Result& result = job.result;
  const int64_t now = now_ns();
  const auto or_now = [now](int64_t time_ns) { return time_ns > 0 ? time_ns : now; };
  result.queue_ns = or_now(job.admitted_ns) - job.added_ns;
  result.prompt_ns = or_now(job.first_token_ns) - or_now(job.admitted_ns);
  result.decode_ns = now - or_now(job.first_token_ns);
  result.preemptions = scheduler_.sequence(id).preemptions;
  result.finish = how;
  result.error = error;
  result.stop = job.stops.stop();
  std::string rest;
  if (how != Finish::Cancelled) {
    rest = job.stops.push(job.utf8.finish());
    rest += job.stops.finish();
  }
  ++totals_.finished_total[static_cast<size_t>(how)];
  scheduler_.remove(id);
  const auto ended = jobs_.extract(id);
  ended.mapped().listener->on_end(id, rest, ended.mapped().result);
}

void Batcher::snapshot(EngineStats& stats) const {
  std::vector<SlotStats> slots = std::move(stats.slots);
  stats = totals_;
  const KvCache& cache = scheduler_.cache();
  stats.running = std::ssize(scheduler_.running());
  stats.waiting = scheduler_.waiting();
  stats.pages = cache.pages();
  stats.free_pages = cache.free_pages();
  stats.cached_pages = cache.cached_pages();
  stats.used_pages = cache.pages() - cache.available();
  stats.preemptions_total = scheduler_.preemptions();
  slots.assign(static_cast<size_t>(options_.max_sequences), {});
  for (const Sequence* sequence : scheduler_.running()) {
    const Result& result = jobs_.at(sequence->id).result;
    slots[static_cast<size_t>(sequence->place)] = {sequence->id, sequence->prompt_tokens,
                                                   sequence->pages.rows, sequence->cached_tokens,
                                                   result.generated_tokens};
  }
  stats.slots = std::move(slots);
}

}  // namespace sluice::engine
