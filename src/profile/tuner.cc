#include "profile/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "profile/statistics.h"
#include "program/op_info.h"

namespace sluice::profile {
namespace {

using namespace program;
using Make = std::function<std::unique_ptr<Backend>(const Tuning&)>;

/// A value of a choice at one shape, and its rounds' times.
struct Contestant {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<OpBench> bench;
  std::vector<double> us;
};

/// Adds one shape's times to a choice.
void measure(const Make& make, const TuneCase& at, const TuneOptions& options, Choice& choice) {
  std::vector<Contestant> contestants;
  const WeightBytes& weights = at.weights();
  for (const int64_t value : choice.variants.values) {
    Contestant contestant;
    contestant.backend = make({{choice.variants.key, value}});
    contestant.bench =
        std::make_unique<OpBench>(*contestant.backend, *at.program, *at.op, weights,
                                  OpBenchOptions{.rows = at.rows, .rotate_bytes = options.rotate_bytes});
    contestant.bench->round();  // warms up
    contestants.push_back(std::move(contestant));
  }
  const int64_t began = now_ns();
  const double seconds = options.seconds * static_cast<double>(contestants.size());
  for (int round = 0; round < options.least_rounds || 1e-9 * static_cast<double>(now_ns() - began) < seconds;
       ++round) {
    for (Contestant& contestant : contestants) contestant.us.push_back(1e-3 * contestant.bench->round());
  }
  for (size_t i = 0; i < contestants.size(); ++i) {
    choice.us[i] += at.calls * median(contestants[i].us);
    choice.off_us[i] += at.calls * noise_of_median(contestants[i].us);
  }
  ++choice.ops;
}

void choose(Choice& choice) {
  choice.best = choice.variants.builtin;
  const double builtin_us = choice.us_of(choice.variants.builtin);
  for (size_t i = 0; i < choice.us.size(); ++i) {
    const double won = builtin_us - choice.us[i];
    if (won > kLeastGain * builtin_us && won > choice.off_us[i] && choice.us[i] < choice.us_of(choice.best))
      choice.best = choice.variants.values[i];
  }
}

}  // namespace

double Choice::us_of(int64_t value) const {
  const auto at = std::find(variants.values.begin(), variants.values.end(), value) - variants.values.begin();
  return us[static_cast<size_t>(at)];
}

std::vector<Choice> tune(const Make& make, std::span<const TuneCase> cases, const TuneOptions& options,
                         const std::function<void(const std::string&)>& progress) {
  std::vector<Choice> choices;
  std::map<std::string, size_t> index;
  const auto builtin = make({});
  for (const TuneCase& at : cases) {
    for (Variants& variants : builtin->variants(*at.program, *at.op)) {
      if (std::count(variants.values.begin(), variants.values.end(), variants.builtin) == 0)
        variants.values.push_back(variants.builtin);
      const auto [found, is_new] = index.emplace(variants.key, choices.size());
      if (is_new) {
        const size_t count = variants.values.size();
        choices.push_back(
            {std::move(variants), 0, std::vector<double>(count), std::vector<double>(count), 0});
      }
      Choice& choice = choices[found->second];
      progress(fmt::format("{} at {} {}, {} row{}", choice.variants.key, info(*at.op).name,
                           shape_text(*at.program, *at.op), at.rows, at.rows == 1 ? "" : "s"));
      measure(make, at, options, choice);
    }
  }
  for (Choice& choice : choices) choose(choice);
  return choices;
}

}  // namespace sluice::profile
