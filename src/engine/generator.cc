#include "engine/generator.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "text/stream.h"

namespace sluice::engine {

namespace {

bool is_set(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(); }

}  // namespace

Generator::Generator(program::Executable& executable, const text::Tokenizer& tokenizer, int64_t context,
                     int64_t max_rows)
    : executable_(executable),
      tokenizer_(tokenizer),
      context_(context),
      max_rows_(max_rows),
      pool_(static_cast<int32_t>(KvPool::pages_for(context))),
      batch_(max_rows, 1, static_cast<int32_t>(KvPool::pages_for(context))) {
  const program::Program& program = executable.program();
  logits_.resize(static_cast<size_t>(program[program.output()].columns()));
  CHECK(pool_.reserve(pages_, context));
  batch_.set_pages(0, pages_);
}

void Generator::step() {
  program::StepOutput output{logits_};
  executable_.run(batch_.input(), output);
}

// Steps over the rows of the prompt that are not in the cache. False: cancelled before the last one.
bool Generator::prefill(const Request& request, const std::atomic<bool>* cancel) {
  const std::vector<int32_t>& prompt = request.prompt;
  const auto length = static_cast<int64_t>(prompt.size());
  for (auto begin = static_cast<int64_t>(cached_.size()); begin < length; begin += max_rows_) {
    const int64_t end = std::min(length, begin + max_rows_);
    batch_.clear();
    for (int64_t i = begin; i < end; ++i) {
      batch_.add(prompt[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, i + 1 == length);
    }
    step();
    cached_.insert(cached_.end(), prompt.begin() + begin, prompt.begin() + end);
    if (end < length && is_set(cancel)) return false;
  }
  return true;
}

Result Generator::run(const Request& request, const std::function<bool(std::string_view)>& on_text,
                      const std::atomic<bool>* cancel) {
  if (request.prompt.empty()) fail("the prompt has no tokens");
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens >= context_) {
    throw ContextExceeded(prompt_tokens, context_);
  }
  Result result;
  result.prompt_tokens = prompt_tokens;
  if (request.max_tokens == 0) return result;
  Sampler sampler(request.sampling, static_cast<int32_t>(logits_.size()));
  for (const int32_t token : request.prompt) sampler.accept(token);
  text::Utf8Stream utf8;
  text::StopStream stops(request.stops);

  const int64_t start = now_ns();
  int64_t first_token = start;
  // The last token is computed in any case: its row gives the logits.
  const auto [agrees, unused] =
      std::mismatch(cached_.begin(), cached_.end(), request.prompt.begin(), request.prompt.end() - 1);
  cached_.erase(agrees, cached_.end());
  result.cached_tokens = static_cast<int64_t>(cached_.size());
  if (!prefill(request, cancel)) {
    result.finish = Finish::Cancelled;
    result.prompt_ns = now_ns() - start;
    return result;
  }
  for (int64_t position = prompt_tokens;; ++position) {
    const int32_t token = sampler.sample(logits_);
    sampler.accept(token);
    ++result.generated_tokens;
    if (result.generated_tokens == 1) first_token = now_ns();
    if (tokenizer_.ends_generation(token)) {
      result.finish = Finish::EndToken;
      break;
    }
    if (!on_text(stops.push(utf8.push(tokenizer_.bytes(token, request.show_special)))) || is_set(cancel)) {
      result.finish = Finish::Cancelled;
      break;
    }
    if (stops.stopped()) {
      result.finish = Finish::StopString;
      break;
    }
    if (result.generated_tokens == request.max_tokens) {
      result.finish = Finish::Length;
      break;
    }
    if (position == context_) {
      result.finish = Finish::ContextFull;
      break;
    }
    batch_.clear();
    batch_.add(token, static_cast<int32_t>(position), 0, true);
    step();
    cached_.push_back(token);
  }
  if (result.finish != Finish::Cancelled) on_text(stops.push(utf8.finish()) + stops.finish());
  result.prompt_ns = first_token - start;
  result.decode_ns = now_ns() - first_token;
  return result;
}

}  // namespace sluice::engine
