#include "engine/batcher.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/logprobs.h"
#include "text/constraint.h"

namespace sluice::engine {
namespace {

size_t columns_of(const program::Program& program) {
  return static_cast<size_t>(program[program.output()].columns());
}

Batch batch_for(const EngineOptions& options, int64_t rows) {
  return {rows, options.max_sequences, static_cast<int32_t>(KvPool::pages_for(options.context))};
}

/// Whether there is anything to draw from: what a damaged file gives is not.
bool any_number(const program::RowResult& row, size_t vocabulary) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (row.logits.empty()) return row.top.front().token >= 0;
  return std::ranges::any_of(row.logits.first(vocabulary), [](float logit) { return logit > kNone; });
}

}  // namespace

Batcher::Job::Job(Request given, std::shared_ptr<Listener> hears)
    : request(std::move(given)),
      listener(std::move(hears)),
      stops(request.stops),
      lookup(std::move(request.prediction)) {
  client = request.client;
  tokens = std::move(request.prompt);
  use_cache = request.use_cache;
  group = request.group;
  if (request.prompt_logprobs && tokens.size() > 1) scored_from = 0;
  result.prompt_tokens = std::ssize(tokens);
}

bool Batcher::Job::writes_on(int64_t context) const {
  const int64_t generated = result.generated_tokens + 1;
  return generated != request.max_tokens && result.prompt_tokens + generated <= context;
}

Batcher::Batcher(program::Executable& executable, const text::Tokenizer& tokenizer,
                 const EngineOptions& options, store::PageStore* store, events::Sink* sink)
    : executable_(executable),
      has_states_(executable.program().has_states()),
      facts_(executable.facts()),
      tokenizer_(tokenizer),
      options_(options),
      columns_(columns_of(executable.program())),
      vocabulary_(std::min(columns_, static_cast<size_t>(tokenizer.size()))),
      scheduler_({options.context, options.max_sequences, options.max_rows, options.pages,
                  options.max_itl_ms * 1e-3, options.shallow_rows, facts_.aside_rows,
                  options.long_step_seconds, std::min(options.draft_tokens + 1, facts_.draft_rows),
                  options.outputs(), has_states_ ? options.state_slots : 0}),
      store_(store),
      current_{.batch = batch_for(options, options.max_rows)},
      ahead_{.batch = batch_for(options, facts_.steps_in_flight > 1 ? options.max_sequences : 0)},
      long_{{.batch = batch_for(options, facts_.aside_rows > 0 ? options.max_rows : 0)}},
      scratch_(vocabulary_),
      allowed_((vocabulary_ + 31) / 32) {
  for (Planned* step : {&current_, &ahead_, static_cast<Planned*>(&long_)})
    step->outputs.reserve(static_cast<size_t>(options.outputs()));
  drafts_.reserve(static_cast<size_t>(DraftPace::kMostRows));
  asks_.reserve(static_cast<size_t>(DraftPace::kMostRows));
  if (options.predictor != nullptr && options.draft_tokens > 0 && facts_.draft_rows > 1 && !has_states_) {
    predictor_.emplace(executable, *options.predictor, options.max_rows, options.max_sequences,
                       options.context, vocabulary_);
  }
  jobs_.reserve(static_cast<size_t>(options.max_waiting));
  if (sink != nullptr) teller_.emplace(*sink, scheduler_.cache());
  if (store == nullptr) return;
  CHECK(executable.copier() != nullptr, "a store for an executable that copies no pages");
  scheduler_.set_source(&keeper_.emplace(*executable.copier(), *store, scheduler_.cache()));
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
  if (tokens + (request.max_tokens == 0 ? 0 : 1) > options_.context)
    throw ContextExceeded(tokens, options_.context);
  const auto known = static_cast<int32_t>(vocabulary_);
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= known) fail("the prompt has token {}, expected 0 to {}", token, known - 1);
  for (const auto& [token, unused] : request.sampling.logit_bias)
    if (token >= known) fail("logit_bias: token {}, expected 0 to {}", token, known - 1);
  if (request.max_tokens < -1) fail("max_tokens is {}, expected -1 (no limit) or more", request.max_tokens);
  if (request.top_logprobs < -1 || request.top_logprobs > Request::kMostTopLogprobs)
    fail("top_logprobs is {}, expected 0 to {}", request.top_logprobs, Request::kMostTopLogprobs);
  if (request.prompt_logprobs && request.top_logprobs < 0) fail("prompt_logprobs without top_logprobs");
  request.sampling.validate();
}

void Batcher::add(RequestId id, Request request, std::shared_ptr<Listener> listener, int64_t time_ns) {
  ++totals_.requests_total;
  const auto [at, added] = jobs_.try_emplace(id, Job(std::move(request), std::move(listener)));
  CHECK(added, "request {}", id);
  Job& job = at->second;
  job.id = id;
  job.call = job.request.call != 0 ? job.request.call : ~id;  // a name that no other call has
  job.added_ns = time_ns;
  scheduler_.add(job);
  if (job.request.max_tokens == 0 && job.scored_from == Sequence::kNoScores) finish(job, Finish::Length);
}

void Batcher::cancel(RequestId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (job.in_long_step) {
    if (reads_ != id) {
      job.cancelled = true;
      return;
    }
    give_up_long();
  }
  finish(job, Finish::Cancelled);
}

void Batcher::end_all(Finish how, std::string_view error) {
  if (scheduler_.long_step()) give_up_long();
  while (!jobs_.empty()) finish(jobs_.begin()->second, how, error);
}

void Batcher::clear_cache() {
  if (keeper_) {
    keeper_->clear();
  } else {
    scheduler_.cache().clear();
  }
}

// ------------------------------------------------------------------------------------------ parts of a step

// Says whose answers rest.
void Batcher::pace_draws() {
  if (options_.timeless) return;
  answers_.clear();
  for (Sequence* sequence : scheduler_.running()) {
    const Job& job = job_of(sequence);
    const bool draws = !job.in_long_step && !job.reads();
    answers_.push_back(
        {&job.client, job.call, draws, draws ? job.draw_seconds : 0, job.drawn_seconds, job.drawn_ns});
  }
  draw_pace_.choose(answers_, step_seconds_);
  for (size_t i = 0; Sequence * sequence : scheduler_.running()) sequence->rests = answers_[i++].rests;
}

// Only who runs has a sampler: with penalties it counts the whole vocabulary.
void Batcher::begin_admitted() {
  for (Sequence* sequence : scheduler_.admitted()) {
    Job& job = job_of(sequence);
    if (job.admitted_ns > 0) continue;  // it was preempted and is back
    job.admitted_ns = now_ns();
    make_sampler(job);
    Result& result = job.result;
    result.queue_ns = job.admitted_ns - job.added_ns;
    result.cached_tokens = job.cached_tokens;
    totals_.prompt_tokens_total += result.prompt_tokens;
    totals_.cached_tokens_total += result.cached_tokens;
    totals_.prefix_hits_total += result.cached_tokens > 0;
    job.listener->on_prompt(job.id, result.cached_tokens, result.prompt_tokens);
  }
}

// Its counts may be too much for the memory there is. The step is planned by then: it ends with that.
void Batcher::make_sampler(Job& job) {
  try {
    job.sampler.emplace(job.request.sampling, scratch_);
  } catch (const std::bad_alloc&) {
    job.out_of_memory = true;
    job.sampler.emplace(SamplingParams{}, scratch_);
  }
  for (const int32_t token : job.tokens) job.sampler->read(token);
}

void Batcher::fill(Planned& step, std::span<const Chunk> chunks) const {
  step.chunks = chunks;
  step.batch.clear();
  step.outputs.clear();
  for (const Chunk& chunk : chunks) {
    Job& job = job_of(chunk.sequence);
    step.batch.set_pages(job.place, job.pages.pages);
    if (has_states_) step.batch.set_state(job.place, job.pages.state);
    const int64_t rows = chunk.rows - (chunk.last() ? 1 : 0);
    for (int64_t at = chunk.first; at < chunk.first + rows; ++at) {
      const bool scored = job.scored(at);
      step.batch.add(job.tokens[static_cast<size_t>(at)], static_cast<int32_t>(at), job.place, scored);
      if (scored) step.outputs.push_back({.job = &job, .position = at, .scores = true});
    }
    if (!chunk.last()) continue;
    program::Want want = want_of(job, 0);
    want.drafts = static_cast<int32_t>(chunk.drafts);
    int64_t at = chunk.first + rows;
    step.batch.add(job.tokens.back(), static_cast<int32_t>(at), job.place, want);
    step.outputs.push_back({&job});
    for (int i = 0; i < chunk.drafts; ++i) {
      const int32_t token = job.found()[static_cast<size_t>(i)];
      step.batch.add(token, static_cast<int32_t>(++at), job.place, want_of(job, i + 1));
      step.outputs.push_back({&job, at, token});
    }
  }
}

void Batcher::submit(Planned& step, const std::atomic<bool>* stop) {
  program::Step submitted = step.batch.step();
  submitted.stop = stop;
  step.ticket = executable_.submit(submitted);
}

program::StepResult Batcher::collect(Planned& step) {
  return executable_.collect(*std::exchange(step.ticket, std::nullopt));
}

// A step that has ended: what it says of prompts is told.
void Batcher::count(const Planned& step) {
  ++totals_.steps_total;
  for (const Chunk& chunk : step.chunks) {
    Job& job = job_of(chunk.sequence);
    totals_.rows_total += chunk.rows + chunk.drafts;
    totals_.draft_tokens_total += chunk.drafts;
    job.result.draft_tokens += chunk.drafts;
    if (chunk.first >= job.prompt_tokens) continue;
    totals_.prompt_rows_total += chunk.rows;
    if (job.result.generated_tokens == 0)  // else it was preempted and reads again
      job.listener->on_prompt(job.id, chunk.first + chunk.rows, job.result.prompt_tokens);
  }
}

// How long answers took, if it had no rows of prompts, and what reading them costs, if it had.
void Batcher::observe(const Planned& step, double seconds) {
  int64_t prompt_rows = 0;
  for (const Chunk& chunk : step.chunks) prompt_rows += chunk.answers() ? 0 : chunk.rows;
  if (keeper_ && !options_.timeless) keeper_->observe(prompt_rows, seconds);
  if (std::ranges::all_of(step.chunks, &Chunk::answers))
    draft_pace_.observe(step.batch.rows(), options_.timeless ? 1 : seconds - predicting_seconds_);
  predicting_seconds_ = 0;
}

// ------------------------------------------------------------------------------------------------ tokens

// What is wanted of a row of an answer, before whose token so many others are drawn.
program::Want Batcher::want_of(const Job& job, int drawn_before) const {
  if (!top_suffices(job)) return {};
  return {.logits = false, .top = true, .drawn = true, .draw = job.sampler->draw_after(drawn_before)};
}

bool Batcher::top_suffices(const Job& job) const {
  return columns_ == vocabulary_ && job.request.constraint == nullptr && job.request.top_logprobs < 0 &&
         job.sampler->draws_from_top();
}

// No token: the constraint leaves none, or there is nothing to draw from.
std::optional<int32_t> Batcher::draw(Job& job, const program::RowResult& row) {
  text::TokenConstraint* constraint = job.request.constraint.get();
  std::span<const uint32_t> allowed;
  if (constraint != nullptr && constraint->allowed(allowed_)) {
    allowed = allowed_;
    if (std::ranges::all_of(allowed_, [](uint32_t word) { return word == 0; })) return std::nullopt;
  }
  const int32_t token = row.logits.empty() ? job.sampler->sample(row.top)
                                           : job.sampler->sample(row.logits.first(vocabulary_), allowed);
  if (token == 0 && !any_number(row, vocabulary_)) return std::nullopt;
  if (constraint != nullptr && !constraint->accept(token)) return std::nullopt;
  job.sampler->accept(token);
  return token;
}

std::optional<int32_t> Batcher::timed_draw(Job& job, const program::RowResult& row) {
  const int64_t begin = now_ns();
  const std::optional<int32_t> token = draw(job, row);
  job.drawn_ns = now_ns();
  const double seconds = 1e-9 * static_cast<double>(job.drawn_ns - begin);
  // Half by half: once in a while somebody else has the processor for a moment.
  job.draw_seconds = job.drawn_seconds > 0 ? (job.draw_seconds + seconds) / 2 : seconds;
  job.drawn_seconds += seconds;
  draw_pace_.drew(job.client, job.call, seconds);
  return token;
}

// outputs: of the step that gave the result. A drafted token's are worth something if it was right, and so
// was all that was drafted before it.
void Batcher::take_tokens(std::span<Output> outputs, const program::StepResult& result, int64_t time_ns) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    if (output.job == nullptr) continue;
    Job& job = *output.job;
    const bool drafts = i + 1 < outputs.size() && outputs[i + 1].job == &job;
    job.drafted_next = drafts ? outputs[i + 1].assumed : -1;
    try {
      take_output(output, result.outputs[i], time_ns);
    } catch (const std::bad_alloc&) {  // finish() throws none: the job is still there
      finish(job, Finish::OutOfMemory);
    }
  }
}

// Of a benchmark, which says whether what was drafted is right.
int32_t Batcher::simulated(const Job& job, int32_t drawn) const {
  if (job.request.accepts()) return job.drafted_next;
  const auto other = static_cast<int32_t>(static_cast<size_t>(drawn + 1) % vocabulary_);
  return drawn != job.drafted_next ? drawn : other;
}

void Batcher::take_output(const Output& output, const program::RowResult& row, int64_t time_ns) {
  Job& job = *output.job;
  if (output.scores) return take_score(job, output.position, row);
  if (output.assumed >= 0) {
    if (std::ssize(job.tokens) != output.position + 1 || job.tokens.back() != output.assumed) return;
    scheduler_.accept(job);
    ++job.result.accepted_tokens;
    ++totals_.accepted_tokens_total;
  }
  take_token(job, row, time_ns);
}

// The row behind which the prompt goes on.
void Batcher::take_score(Job& job, int64_t position, const program::RowResult& row) {
  const int64_t index = position + 1;
  log_probabilities(row.logits.first(vocabulary_), job.tokens[static_cast<size_t>(index)],
                    job.request.top_logprobs, logprobs_);
  job.scored_from = index + 1 < job.prompt_tokens ? index : Sequence::kNoScores;
  job.listener->on_prompt_token(job.id, index, logprobs_);
}

void Batcher::take_token(Job& job, const program::RowResult& row, int64_t time_ns) {
  Result& result = job.result;
  if (job.request.max_tokens == 0) return finish(job, Finish::Length);  // nothing but scores was wanted
  if (job.out_of_memory) return finish(job, Finish::OutOfMemory);
  std::optional<int32_t> token = timed_draw(job, row);
  if (token && job.drafted_next >= 0 && job.request.accepts) token = simulated(job, *token);
  if (!token)
    return finish(job, Finish::Error,
                  any_number(row, vocabulary_)
                      ? "the constraint on the answer leaves no token that may follow"
                      : "no logit of the model is a number: its file may be damaged");
  if (result.generated_tokens == 0) job.first_token_ns = time_ns;
  ++result.generated_tokens;
  ++totals_.generated_tokens_total;
  logprobs_.clear();
  if (job.request.top_logprobs >= 0)
    log_probabilities(row.logits.first(vocabulary_), *token, job.request.top_logprobs, logprobs_);
  TokenEvent event{
      job.id, *token, {}, logprobs_, time_ns, result.generated_tokens - 1, result.accepted_tokens};
  if (!job.request.ignore_end && tokenizer_.ends_generation(*token)) {
    job.listener->on_end_token(event);
    return finish(job, Finish::EndToken);
  }
  const std::string text = job.stops.push(job.utf8.push(tokenizer_.bytes(*token, job.request.show_special)));
  event.text = text;
  job.listener->on_token(event);
  if (job.stops.stopped()) return finish(job, Finish::StopString);
  if (result.generated_tokens == job.request.max_tokens) return finish(job, Finish::Length);
  // The token that was just drawn needs a row if it is to be followed by another.
  if (result.prompt_tokens + result.generated_tokens > options_.context)
    return finish(job, Finish::ContextFull);
  scheduler_.append(job, *token);
}

void Batcher::finish(Job& job, Finish how, std::string_view error) {
  Result& result = job.result;
  const int64_t now = now_ns();
  const auto or_now = [now](int64_t time_ns) { return time_ns > 0 ? time_ns : now; };
  result.queue_ns = or_now(job.admitted_ns) - job.added_ns;
  result.prompt_ns = or_now(job.first_token_ns) - or_now(job.admitted_ns);
  result.decode_ns = now - or_now(job.first_token_ns);
  result.preemptions = job.preemptions;
  result.finish = how;
  std::string rest;
  try {
    result.error = error;
    result.stop = job.stops.stop();
    if (how != Finish::Cancelled && how != Finish::OutOfMemory) {
      rest = job.stops.push(job.utf8.finish());
      rest += job.stops.finish();
    }
  } catch (const std::bad_alloc&) {
    result.finish = Finish::OutOfMemory;
  }
  ++totals_.finished_total[static_cast<size_t>(result.finish)];
  scheduler_.remove(job);
  for (Planned* step : {&current_, &ahead_, static_cast<Planned*>(&long_)})
    for (Output& output : step->outputs)
      if (output.job == &job) output.job = nullptr;
  const auto ended = jobs_.extract(job.id);
  try {
    if (before_ends_) before_ends_();
    ended.mapped().listener->on_end(ended.key(), rest, ended.mapped().result);
  } catch (const std::bad_alloc&) {  // it has the listener's word for it, and nobody else is told
  }
}

void Batcher::snapshot(EngineStats& stats) const {
  std::vector<SlotStats> slots = std::move(stats.slots);
  stats = totals_;
  const KvCache& cache = scheduler_.cache();
  stats.running = std::ssize(scheduler_.running());
  stats.waiting = scheduler_.waiting();
  stats.pages = cache.pages();
  stats.page_tokens = program::kPageRows;
  stats.free_pages = cache.free_pages();
  stats.cached_pages = cache.cached_pages();
  stats.used_pages = cache.pages() - cache.available();
  stats.preemptions_total = scheduler_.preemptions();
  slots.assign(static_cast<size_t>(options_.max_sequences), {});
  for (Sequence* sequence : scheduler_.running()) {
    const Result& result = job_of(sequence).result;
    slots[static_cast<size_t>(sequence->place)] = {sequence->id,
                                                   sequence->prompt_tokens,
                                                   sequence->pages.rows,
                                                   sequence->cached_tokens,
                                                   result.generated_tokens,
                                                   sequence->brought_tokens};
  }
  stats.slots = std::move(slots);
  if (store_ == nullptr) return;
  stats.has_store = true;
  stats.store = store_->stats();
  stats.brought_pages_total = keeper_->brought_total();
}

}  // namespace sluice::engine
