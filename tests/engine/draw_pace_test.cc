// Who rests because its tokens are dear to draw, in a simulation: what is measured is for how much of the
// time the others wait for draws.
#include "engine/draw_pace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::engine {
namespace {

struct Writer {
  std::string client;
  uint64_t call;
  double seconds;  ///< a token
  int64_t tokens = 0;
  double spent = 0;
  int64_t last_ns = 0;
};

/// Steps of `step_seconds` and their draws: how often each writer had a token, and how long all took.
double run(std::vector<Writer>& writers, double step_seconds, int steps, DrawPace& pace) {
  double time = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<DrawPace::Answer> answers;
    for (const Writer& one : writers)
      answers.push_back(
          {&one.client, one.call, true, one.tokens > 0 ? one.seconds : 0, one.spent, one.last_ns});
    pace.choose(answers, step_seconds);
    time += step_seconds;
    bool any = false;
    for (size_t i = 0; i < writers.size(); ++i) {
      if (answers[i].rests) continue;
      Writer& one = writers[i];
      any = true;
      time += one.seconds;
      one.spent += one.seconds;
      one.last_ns = static_cast<int64_t>(time * 1e9);
      ++one.tokens;
      pace.drew(one.client, one.call, one.seconds);
    }
    EXPECT_TRUE(any) << "step " << step;
  }
  return time;
}

double run(std::vector<Writer>& writers, double step_seconds, int steps) {
  DrawPace pace;
  return run(writers, step_seconds, steps, pace);
}

std::vector<Writer> many(int count, const std::string& client, uint64_t call, double seconds) {
  return std::vector<Writer>(static_cast<size_t>(count), Writer{client, call, seconds});
}

TEST(DrawPace, CheapDrawsAllTakePart) {
  std::vector<Writer> writers;
  for (int i = 0; i < 32; ++i)
    writers.push_back({"client " + std::to_string(i % 3), uint64_t(i) + 1, 0.3e-3});
  run(writers, 8e-3, 100);
  for (const Writer& one : writers) EXPECT_EQ(one.tokens, 100);
}

TEST(DrawPace, OneRequestsDearAnswersCostOthersHalfOfTheirRateAtMost) {
  // Of one client; of another; each a request of its own, of another client; a single answer.
  const std::vector<std::vector<Writer>> attacks = {many(31, "a", 7, 50e-3), many(31, "b", 7, 50e-3),
                                                    [] {
                                                      std::vector<Writer> each;
                                                      for (int i = 0; i < 31; ++i)
                                                        each.push_back({"b", uint64_t(i) + 10, 50e-3});
                                                      return each;
                                                    }(),
                                                    many(1, "b", 7, 0.5), many(64, "b", 7, 2e-3)};
  for (const std::vector<Writer>& attack : attacks) {
    std::vector<Writer> writers = {{"a", 1, 0.2e-3}, {"a", 2, 0.2e-3}};
    writers.insert(writers.end(), attack.begin(), attack.end());
    constexpr int kSteps = 20'000;
    const double time = run(writers, 5e-3, kSteps);
    EXPECT_EQ(writers[0].tokens, kSteps);
    EXPECT_EQ(writers[1].tokens, kSteps);
    const double alone = kSteps * (5e-3 + 0.4e-3);
    EXPECT_LT(time, 2.15 * alone);
    EXPECT_GT(time, 1.5 * alone) << "and who is dear gets its half";
    for (const Writer& one : writers) EXPECT_GT(one.tokens, 0);
  }
}

TEST(DrawPace, DearAnswersOfOneRequestGetAlike) {
  std::vector<Writer> writers = many(8, "b", 7, 20e-3);
  writers.push_back({"a", 1, 0.1e-3});
  run(writers, 5e-3, 5000);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(static_cast<double>(writers[size_t(i)].tokens), 5000.0 / 32, 10);
}

TEST(DrawPace, WhoIsAloneNeverRests) {
  std::vector<Writer> writers = many(20, "a", 7, 50e-3);
  run(writers, 1e-3, 100);
  for (const Writer& one : writers) EXPECT_EQ(one.tokens, 100);
}

TEST(DrawPace, OfAClientItsCheapRequestsGoFirst) {
  std::vector<Writer> writers = {{"b", 1, 0.5e-3}, {"b", 2, 0.5e-3}, {"a", 3, 0.1e-3}};
  for (int i = 0; i < 10; ++i) writers.push_back({"b", uint64_t(i) + 10, 10e-3});
  run(writers, 5e-3, 4000);
  EXPECT_EQ(writers[2].tokens, 4000);
  EXPECT_GT(writers[0].tokens, 5 * writers[3].tokens);
  EXPECT_GT(writers[3].tokens, 0);
}

TEST(DrawPace, DebtsAreForgotten) {
  DrawPace pace;
  std::vector<Writer> writers = {{"b", 1, 1.0}, {"a", 2, 0.1e-3}};
  run(writers, 5e-3, 50, pace);
  EXPECT_LT(writers[0].tokens, 5);
  writers[0] = {"b", 3, 0.1e-3};  // what it owes was a request's that has ended
  writers[0].tokens = 1;
  run(writers, 5e-3, 2000, pace);
  EXPECT_GT(writers[0].tokens, 1500);
}

}  // namespace
}  // namespace sluice::engine
