// A listener that writes down what it hears, and can be waited for.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"

namespace sluice::test {

class Recorder : public engine::Listener {
 public:
  /// What was heard; complete once wait() has returned.
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;                            ///< all of all tokens, in their order
  std::vector<std::vector<engine::TokenLogprob>> prompt;  ///< of the prompt's tokens from the second on
  int end_tokens = 0;
  int64_t accepted = 0;  ///< as the last token said
  std::vector<int64_t> times_ns;
  engine::Result result;
  int ends = 0;
  std::function<void(const engine::TokenEvent&)> also;  ///< called for every token

  void on_token(const engine::TokenEvent& event) override {
    EXPECT_EQ(ends, 0) << "a token after the end";
    hear(event);
    text += event.text;
    tokens.push_back(event.token);
    times_ns.push_back(event.time_ns);
    for (const engine::TokenLogprob& entry : event.logprobs) logprobs.push_back(entry.logprob);
    if (also) also(event);
  }
  void on_prompt_token(engine::RequestId, int64_t index,
                       std::span<const engine::TokenLogprob> entries) override {
    EXPECT_TRUE(ends == 0 && tokens.empty());
    prompt.emplace_back(entries.begin(), entries.end());
    EXPECT_EQ(index, std::ssize(prompt));
  }
  void on_end_token(const engine::TokenEvent& event) override {
    hear(event);
    ++end_tokens;
  }
  void on_end(engine::RequestId, std::string_view rest, const engine::Result& how) override {
    text += rest;
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(++ends, 1);
    EXPECT_EQ(accepted, how.accepted_tokens);
    result = how;
    ended_.notify_all();
  }

  /// Waits for the end, a minute at most; under sanitizers ten.
  const engine::Result& wait() {
    using std::chrono::system_clock;
    std::unique_lock lock(mutex_);
    // By the system's clock: waiting by another one, g++ 12's thread sanitizer does not see the lock given
    // up. In short pieces: while the whole process stands still, no time passes.
#ifdef SLUICE_SANITIZED
    constexpr int kPieces = 12'000;
#else
    constexpr int kPieces = 1'200;
#endif
    for (int i = 0; i < kPieces && ends == 0; ++i)
      ended_.wait_until(lock, system_clock::now() + std::chrono::milliseconds(50));
    EXPECT_GT(ends, 0) << "no end came";
    return result;
  }

 private:
  void hear(const engine::TokenEvent& event) {
    EXPECT_EQ(event.index, std::ssize(tokens));
    EXPECT_LE(accepted, event.accepted);
    EXPECT_LE(event.accepted, event.index) << "a token that was not drawn yet";
    accepted = event.accepted;
  }

  std::mutex mutex_;
  std::condition_variable ended_;
};

}  // namespace sluice::test
