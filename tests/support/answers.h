// Requests of many kinds, and all that a reader can see of their answers: what must not change where nothing
// but the stepping does.
#pragma once

#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "support/recorder.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

namespace sluice::test {

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<float> logprobs;
  engine::Finish finish;
  bool operator==(const Answer&) const = default;
};

inline void PrintTo(const Answer& answer, std::ostream* out) { *out << answer.text; }

inline Answer answer_of(Recorder& listener) {
  const engine::Finish finish = listener.wait().finish;
  return {listener.tokens, listener.text, listener.logprobs, finish};
}

/// A request as it was before any engine had it.
inline engine::Request fresh(const engine::Request& request) {
  engine::Request copy = request;
  if (copy.constraint != nullptr) copy.constraint = copy.constraint->clone();
  return copy;
}

/// Each by an engine of its own, so that nothing is cached. Served has an executable, a tokenizer and
/// options.
template <typename Served>
std::vector<Answer> one_by_one(const Served& served, const std::vector<engine::Request>& requests) {
  std::vector<Answer> out;
  for (const engine::Request& request : requests) {
    engine::Engine engine(*served.executable, served.tokenizer, served.options);
    const auto listener = std::make_shared<Recorder>();
    engine.submit(fresh(request), listener);
    out.push_back(answer_of(*listener));
  }
  return out;
}

/// Requests to a model of English; the prompts of some begin alike.
inline std::vector<engine::Request> varied_requests(const text::Tokenizer& tokenizer, int64_t answer) {
  const std::string opening = "Once upon a time there was a king who had three daughters, and the youngest";
  std::string tale = opening;
  for (int i = 0; i < 12; ++i)
    tale += " went into the wood, and there she met a fox who spoke to her, and she";
  const std::string prompts[] = {
      opening, tale, tale + " said", "The fox", tale.substr(0, 400), opening + " of them", "A", tale};
  std::vector<engine::Request> out;
  for (const std::string& prompt : prompts) {
    engine::Request request{.prompt = tokenizer.encode(prompt, true), .max_tokens = answer};
    const size_t i = out.size();
    request.sampling.seed = 40 + i;
    request.sampling.temperature = i % 4 == 0 ? 0 : 0.9f;
    if (i % 3 == 1) request.sampling.repeat_penalty = 1.2f;
    if (i == 5) request.sampling.logit_bias = {{request.prompt[0], -3.0f}, {request.prompt[1], 1.0f}};
    request.top_logprobs = static_cast<int32_t>(i % 4) - 1;
    if (i == 6) request.stops = {"the"};
    out.push_back(std::move(request));
  }
  return out;
}

/// Requests of random tokens, for a context of 256.
inline std::vector<engine::Request> random_requests(int64_t vocabulary) {
  std::mt19937 random(3);
  std::vector<engine::Request> out;
  for (uint64_t i = 0; i < 10; ++i) {
    engine::Request request{.max_tokens = 60, .ignore_end = true, .top_logprobs = 0};
    if (i % 3 > 0) request.prompt = out.back().prompt;
    for (uint32_t more = 1 + random() % 70; more > 0; --more)
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary)));
    request.prompt.resize(std::min<size_t>(request.prompt.size(), 190));
    request.sampling = {.temperature = i % 2 == 0 ? 0 : 1.0f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = i};
    out.push_back(std::move(request));
  }
  return out;
}

}  // namespace sluice::test
