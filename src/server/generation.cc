#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "server/answer.h"

namespace sluice::server {

namespace {

/// Memory for a token's log-probability of one candidate: here, as JSON, and as the JSON's text.
constexpr size_t kLogprobBytes = 600;
/// And for a byte of an answer's text.
constexpr size_t kKeptCopies = 3;

}  // namespace

// Hears what becomes of one choice, on the engine's thread.
class Generation::Ear : public engine::Listener {
 public:
  Ear(std::shared_ptr<Generation> generation, size_t choice)
      : generation_(std::move(generation)), choice_(choice), last_ns_(now_ns()) {}

  void on_prompt(engine::RequestId, int64_t done, int64_t total) override {
    if (!generation_->hears_prompt_) return;
    if (cached_ < 0) cached_ = done;
    generation_->hear({.choice = choice_,
                       .progress = PromptProgress{cached_, std::min(done, total), total,
                                                  now_ns() - generation_->started_ns_}});
  }
  void on_token(const engine::TokenEvent& event) override {
    RequestTimes& times = generation_->times_;
    (event.index == 0 ? times.time_to_first_token : times.inter_token).add_ns(event.time_ns - last_ns_);
    last_ns_ = event.time_ns;
    generation_->hear({.choice = choice_,
                       .token = event.token,
                       .text = std::string(event.text),
                       .accepted = event.accepted,
                       .time_ns = event.time_ns,
                       .logprobs = {event.logprobs.begin(), event.logprobs.end()}});
  }
  void on_prompt_token(engine::RequestId, int64_t, std::span<const engine::TokenLogprob> logprobs) override {
    generation_->hear({.choice = choice_,
                       .token = logprobs.front().token,
                       .of = News::Of::Prompt,
                       .logprobs = {logprobs.begin(), logprobs.end()}});
  }
  void on_end_token(const engine::TokenEvent& event) override {
    if (!generation_->all_tokens_) return;
    generation_->hear({.choice = choice_,
                       .token = event.token,
                       .of = News::Of::End,
                       .logprobs = {event.logprobs.begin(), event.logprobs.end()}});
  }
  void on_end(engine::RequestId, std::string_view text, const engine::Result& result) override {
    generation_->times_.queue_time.add_ns(result.queue_ns);
    generation_->hear({.choice = choice_, .text = std::string(text), .result = result});
  }

 private:
  std::shared_ptr<Generation> generation_;
  size_t choice_;
  int64_t last_ns_, cached_ = -1;
};

Generation::Generation(const Call& call, GenerationPlan& plan, std::unique_ptr<Sink> sink)
    : lease_(call.lease),
      service_(call.service),
      times_(call.times),
      record_(call.record),
      queue_(call.queue),
      sink_(std::move(sink)),
      constraint_use_(std::move(plan.constraint_use)),
      tools_(std::move(plan.tools)),
      one_call_(plan.one_call),
      hears_prompt_(plan.hears_prompt),
      all_tokens_(plan.all_tokens),
      format_(plan.format),
      prompt_tokens_(plan.prompt_tokens),
      earlier_calls_(plan.earlier_calls),
      started_ns_(now_ns()),
      group_(call.group.pages),
      choices_(plan.requests.size()),
      parsers_(plan.requests.size()),
      running_(plan.requests.size()),
      memory_(call.exchange->memory().sibling()) {
  for (auto& parser : parsers_) {
    if (plan.format) parser.emplace(*plan.format, tools_, plan.starts_in_thinking);
    if (parser && plan.goes_on) parser->go_on();
  }
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    engine::Request& request = plan.requests[i];
    keeps_tokens_ |= request.top_logprobs >= 0;
    show_special_ |= request.show_special;
    if (request.prompt_logprobs && !request.prompt.empty())
      choices_[i].prompt.push_back({request.prompt.front(), {}});
    // A stop text is one of the content alone, which the engine cannot tell from reasoning and calls.
    if (plan.format != nullptr) stops_.push_back({text::StopStream(std::exchange(request.stops, {}))});
  }
  if (keeps_tokens_) tokens_.resize(choices_.size());
}

std::shared_ptr<Generation> Generation::start(const Call& call, GenerationPlan plan,
                                              std::unique_ptr<Sink> sink) {
  size_t bytes = 0;
  for (engine::Request& request : plan.requests) {
    request.client = call.client;
    request.call = call.number;
    request.group = call.group;
    bytes += sizeof request + 4 * (request.prompt.size() + request.prediction.size()) +
             sizeof(request.sampling.logit_bias[0]) * request.sampling.logit_bias.size();
  }
  call.take_to_the_end(bytes);
  if (plan.constraint_use) plan.constraint_use->count(call.exchange->memory().sibling());
  if (!plan.requests.empty())
    call.record->asks(
        {&call.service, call.group.pages}, plan.requests.front().prompt,
        [&](std::span<const int32_t> tokens) { return call.service.tokenizer.decode(tokens, true); });
  std::shared_ptr<Generation> generation(new Generation(call, plan, std::move(sink)));
  generation->submit(std::move(plan.requests), call.style);
  call.exchange->on_gone([weak = std::weak_ptr(generation)] {
    if (const auto left = weak.lock()) left->cancel();
  });
  return generation;
}

void Call::take_for_work(size_t bytes) const {
  if (work && !work->grow(bytes)) throw out_of_memory();
}

void Call::take_to_the_end(size_t bytes) const {
  if (!exchange->memory().grow(bytes)) throw out_of_memory();
}

// Runs on the queue: what the listeners post is read after it.
void Generation::submit(std::vector<engine::Request> requests, Style style) {
  const auto refuse = [this](const ApiError& error) {
    cancel();
    sink_ = nullptr;  // nobody writes what the cancelled choices still say
    throw ApiError(error);
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    try {
      const engine::RequestId id =
          service_.engine.submit(std::move(requests[i]), std::make_shared<Ear>(shared_from_this(), i));
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
    } catch (const engine::ContextExceeded& error) {
      refuse(context_exceeded(style, error.prompt_tokens, error.context));
    } catch (const engine::Unavailable& error) {
      refuse({503, error.what()});
    } catch (const Error& error) {
      refuse(bad_request(error));
    }
  }
}

void Generation::cancel() {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    ids = ids_;
  }
  for (const engine::RequestId id : ids) service_.engine.cancel(id);
}

void Generation::hear(News news) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(news));
    if (scheduled_) return;
    scheduled_ = true;
  }
  queue_->post([self = shared_from_this()] { self->drain(); });
}

// What a request's own words make go wrong is its own affair.
void Generation::drain() {
  try {
    read_news();
  } catch (const std::bad_alloc&) {
    give_up(out_of_memory());
  } catch (const ApiError& error) {
    give_up(error);
  } catch (const std::exception& error) {
    give_up({500, fmt::format("internal error: {}", error.what())});
  }
}

void Generation::give_up(const ApiError& why) {
  cancel();
  if (const auto sink = std::exchange(sink_, nullptr)) sink->done(*this, why);
}

void Generation::read_news() {
  {
    const std::lock_guard lock(mutex_);
    reading_.clear();
    reading_.swap(inbox_);
    scheduled_ = false;
  }
  if (!sink_) return;
  for (News& news : reading_)
    if (sink_) take(news);
}

void Generation::take(News& news) {
  Choice& choice = choices_[news.choice];
  if (choice.cut) {
    if (news.result) end(news.choice, std::move(*news.result));
    return;
  }
  if (news.progress) return sink_->prompt(*this, news.choice, *news.progress);
  if (news.of == News::Of::Prompt) {
    hold(kLogprobBytes * news.logprobs.size());
    choice.prompt.push_back({news.token, std::move(news.logprobs)});
    return;
  }
  if (!news.result) {
    if (news.of == News::Of::Answer) choice.drawn.add(news.accepted, news.time_ns);
    if (news.choice == 0) record_->says(news.token);
    if (parsers_[news.choice] && parsers_[news.choice]->thinking()) ++choice.reasoning_tokens;
    if (keeps_tokens_) {
      const auto bytes = service_.tokenizer.bytes(news.token, show_special_);
      tokens_[news.choice].drawn({news.token, std::move(news.logprobs)},
                                 news.of == News::Of::End ? std::string_view() : bytes);
    }
  }
  std::vector<text::OutputEvent> events;
  if (auto& parser = parsers_[news.choice]) {
    if (!news.text.empty()) events = parser->push(news.text);
  } else if (!news.text.empty()) {
    const size_t end = choice.output.content.size() + news.text.size();
    events.push_back({.kind = text::OutputEvent::Kind::Content, .text = std::move(news.text), .end = end});
  }
  if (one_call_ && !choice.cut) {
    const auto end = std::find_if(events.begin(), events.end(), [](const text::OutputEvent& event) {
      return event.kind == text::OutputEvent::Kind::CallEnd;
    });
    if (end != events.end()) {
      events.erase(end + 1, events.end());
      choice.cut = true;
      const std::lock_guard lock(mutex_);
      service_.engine.cancel(ids_[news.choice]);
    }
  }
  show(news.choice, events, false);
  if (!news.result) return;
  if (auto& parser = parsers_[news.choice]; parser && !choice.cut) {
    events = parser->finish(news.result->finish == engine::Finish::EndToken);
    choice.output.incomplete = parser->incomplete();
    show(news.choice, events, true);
  }
  end(news.choice, std::move(*news.result));
}

// Ends a choice at a stop text in its content, and holds back what may be the beginning of one, and white
// space that may stand before one: content ends without. Content that a call or reasoning parts is two texts.
// last: nothing more comes.
void Generation::stop_content(size_t choice, std::vector<text::OutputEvent>& events, bool last) {
  if (choice >= stops_.size()) return;
  using Kind = text::OutputEvent::Kind;
  text::StopStream& stops = stops_[choice].stops;
  std::string& spaces = stops_[choice].spaces;
  std::vector<text::OutputEvent> shown;
  const auto show = [&](std::string text) {
    if (!text.empty()) shown.push_back({Kind::Content, std::move(text)});
  };
  const auto show_rest = [&] { show(std::exchange(spaces, {}) + stops.finish()); };
  for (text::OutputEvent& event : events) {
    if (event.kind != Kind::Content) {
      show_rest();
      shown.push_back(std::move(event));
      continue;
    }
    std::string text = std::exchange(spaces, {}) + stops.push(event.text);
    const size_t end = text.find_last_not_of(" \t\r\n") + 1;
    spaces = text.substr(end);
    text.resize(end);
    show(std::move(text));
    if (!stops.stopped()) continue;
    Choice& stopped = choices_[choice];
    stopped.stop = stops.stop();
    stopped.output.incomplete = false;
    events = std::move(shown);
    if (!std::exchange(stopped.cut, true)) {
      const std::lock_guard lock(mutex_);
      service_.engine.cancel(ids_[choice]);
    }
    return;
  }
  if (last || choices_[choice].cut) show_rest();
  events = std::move(shown);
}

// Shows what of the events is to be seen, with the tokens that wrote it. last: nothing more comes.
void Generation::show(size_t choice, std::vector<text::OutputEvent>& events, bool last) {
  if (!keeps_tokens_) {
    stop_content(choice, events, last);
    return deliver(choice, events, {});
  }
  const auto each_content = [&events](auto visit) {
    for (const text::OutputEvent& event : events)
      if (event.kind == text::OutputEvent::Kind::Content) visit(event);
  };
  ShownTokens& tokens = tokens_[choice];
  each_content([&tokens](const text::OutputEvent& event) {
    if (event.joined) tokens.inserted(1);
    tokens.content(event.text.size() - (event.joined ? 1 : 0), event.end);
  });
  stop_content(choice, events, last);
  size_t bytes = 0;
  each_content([&bytes](const text::OutputEvent& event) { bytes += event.text.size(); });
  deliver(choice, events, all_tokens_ ? tokens.all() : tokens.shown(bytes));
}

// Counts what is kept of an answer until its end.
void Generation::hold(size_t bytes) {
  if (!memory_.grow(bytes)) throw out_of_memory();
}

void Generation::deliver(size_t choice, const std::vector<text::OutputEvent>& events,
                         std::span<const TokenInfo> tokens) {
  if (events.empty() && tokens.empty()) return;
  size_t bytes = 0;
  for (const text::OutputEvent& event : events) bytes += kKeptCopies * event.text.size();
  for (const TokenInfo& token : tokens) bytes += kLogprobBytes * token.logprobs.size();
  hold(bytes);
  choices_[choice].output.add(events);
  choices_[choice].tokens.insert(choices_[choice].tokens.end(), tokens.begin(), tokens.end());
  sink_->piece(*this, choice, events, tokens);
}

void Generation::end(size_t choice, engine::Result result) {
  Choice& ended = choices_[choice];
  ended.ended = true;
  ended.result = std::move(result);
  if (ended.cut) {  // what the engine heard is that it was cancelled
    ended.result.finish = ended.stop.empty() ? engine::Finish::EndToken : engine::Finish::StopString;
    ended.result.stop = ended.stop;
    ended.result.generated_tokens = ended.drawn.tokens;  // and went on for some steps
    ended.result.accepted_tokens = ended.drawn.accepted;
    ended.result.decode_ns = ended.drawn.last_ns - ended.drawn.first_ns;
  }
  const engine::Finish finish = ended.result.finish;
  const bool failed = finish == engine::Finish::Error || finish == engine::Finish::Shutdown ||
                      finish == engine::Finish::OutOfMemory;
  for (const text::ToolCall& call : ended.output.tool_calls)
    if (call.whole) service_.said_calls->keep(group_, call.name, call.arguments);
  if (!failed) sink_->ended(*this, choice);
  if (--running_ > 0) return;
  std::optional<ApiError> failure;
  for (const Choice& one : choices_) {
    if (one.result.finish == engine::Finish::Error) failure = ApiError(500, one.result.error);
    if (one.result.finish == engine::Finish::OutOfMemory) failure = out_of_memory();
    if (one.result.finish == engine::Finish::Shutdown) failure = ApiError(503, "the server is shutting down");
  }
  times_.request_duration.add_ns(now_ns() - started_ns_);  // first: who has the answer finds it counted
  record_end();
  sink_->done(*this, failure);
  sink_ = nullptr;
}

// Kimi's names of calls are counted over the conversation; its template names results by them.
std::string Generation::call_id(std::string_view name, size_t number, std::string_view prefix) const {
  if (format_ == nullptr || format_->name_prefix.empty() || format_->channels) return new_id(prefix);
  return fmt::format("{}{}:{}", format_->name_prefix, name, earlier_calls_ + static_cast<int64_t>(number));
}

void Generation::record_end() {
  const engine::Result& first = choices_.front().result;
  record_->ended({.prompt = prompt_tokens_,
                  .cached = cached_tokens(),
                  .generated = generated_tokens(),
                  .first_token_ns = first.queue_ns + first.prompt_ns,
                  .decode_ns = first.decode_ns,
                  .finish = engine::finish_name(first.finish)});
}

int64_t Generation::cached_tokens() const {
  int64_t most = 0;
  for (const Choice& choice : choices_) most = std::max(most, choice.result.cached_tokens);
  return most;
}

int64_t Generation::generated_tokens() const {
  int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.result.generated_tokens;
  return sum;
}

int64_t Generation::draft_tokens() const {
  int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.result.draft_tokens;
  return sum;
}

int64_t Generation::accepted_tokens() const {
  int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.result.accepted_tokens;
  return sum;
}

int64_t Generation::reasoning_tokens() const {
  int64_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.reasoning_tokens;
  return sum;
}

}  // namespace sluice::server
