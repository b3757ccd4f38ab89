// How often answers whose tokens are dear to draw (masks of ambiguous grammars, long chains of samplers) take
// part in steps: everybody's next token waits until all of a step's tokens are drawn, so who is dear rests
// now and then. What one request, or one client, draws costs the others at most half of their speed. Pure:
// knows names, numbers and seconds.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sluice::engine {

class DrawPace {
 public:
  /// Who runs.
  struct Answer {
    const std::string* client;
    uint64_t call;       ///< the request that it is an answer of, with others
    bool draws;          ///< it may rest; else it reads its prompt
    double seconds;      ///< that drawing its next token takes, as far as one knows
    double spent;        ///< seconds on all of its tokens so far
    int64_t last_ns;     ///< when the last one was drawn
    bool rests = false;  ///< in the next step: what choose() says
  };

  /// Steps are thought to take so long at least: below, nobody notices what is drawn.
  static constexpr double kLeastStep = 100e-6;

  /// Before each step: who rests. `step_seconds`: what a step takes besides its draws. Not everybody rests.
  void choose(std::span<Answer> answers, double step_seconds);
  /// After it: a token was drawn.
  void drew(const std::string& client, uint64_t call, double seconds);

 private:
  /// A client's request, or (0) all of a client's.
  using Name = std::pair<std::string, uint64_t>;

  static constexpr size_t kMostSpare = 256;

  void owe(const std::string& client, uint64_t call, double seconds);
  void limit(std::span<Answer> answers, double step_seconds, bool by_client);
  void pay(double seconds);

  std::map<Name, double> debts_;  ///< seconds that were drawn and that no step has paid yet
  std::vector<std::map<Name, double>::node_type> spare_;
  Name name_;  ///< of whom it is at the moment
};

}  // namespace sluice::engine
