// What a server was asked and said lately, as tokens, so that its log can say where a prompt parts from the
// conversation that it goes on with. Knows tokens; what becomes of what it finds is its user's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace sluice::server {

class PromptHistory {
 public:
  using Tokens = std::shared_ptr<const std::vector<int32_t>>;
  /// Who may find what: tokens of one model, of one client's prefixes.
  struct Owner {
    const void* model;
    uint64_t group;
    friend bool operator==(const Owner&, const Owner&) = default;
  };
  struct Nearest {
    Tokens tokens;      ///< null: there is none
    size_t common = 0;  ///< so many are the same from the beginning
  };

  /// The latest of those that are the same for longest. From any thread.
  Nearest nearest(const Owner& owner, const std::vector<int32_t>& prompt) const;
  /// Keeps a prompt and its answer; the oldest go when there are too many. From any thread.
  void keep(const Owner& owner, std::vector<int32_t> tokens);

 private:
  static constexpr size_t kMostTexts = 64, kMostTokens = 4'000'000;

  struct Text {
    Owner owner;
    Tokens tokens;
  };
  mutable std::mutex mutex_;
  std::deque<Text> texts_;  ///< the oldest first
  size_t tokens_ = 0;       ///< of all
};

}  // namespace sluice::server
