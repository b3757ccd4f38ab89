// One way of following a grammar, and sets of ways that are filled and emptied often.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::text::grammar {

/// One way: a state of a rule, the counter of that activation of the rule, and who called it.
struct Config {
  uint32_t state, count, frame;
  auto operator<=>(const Config&) const = default;
};

/// As <, in two comparisons: positions and frames are sorted for each byte.
inline constexpr auto is_before = [](const Config& a, const Config& b) {
  const uint64_t left = uint64_t{a.state} << 32 | a.count, right = uint64_t{b.state} << 32 | b.count;
  return left != right ? left < right : a.frame < b.frame;
};

inline uint64_t hash_of(uint64_t hash, const Config& config) {
  hash = (hash ^ (uint64_t{config.state} << 32 | config.frame)) * 0xD6E8FEB86659FD93u;
  hash = (hash ^ (hash >> 32) ^ config.count) * 0xD6E8FEB86659FD93u;
  return hash ^ (hash >> 32);
}

/// Keeps its memory when it is cleared, which costs nothing.
class ConfigSet {
 public:
  void clear() {
    size_ = 0;
    if (++generation_ == 0) slots_.assign(slots_.size(), {});  // 2^32 times later
    generation_ += generation_ == 0 ? 1 : 0;
  }
  size_t size() const { return size_; }
  /// False: it was there.
  bool insert(const Config& config) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = find(config);
    if (slot.generation == generation_) return false;
    slot = {config, generation_};
    ++size_;
    return true;
  }

 private:
  struct Slot {
    Config config{};
    uint32_t generation = 0;
  };

  Slot& find(const Config& config) {
    size_t at = hash_of(0, config) & (slots_.size() - 1);
    while (slots_[at].generation == generation_ && slots_[at].config != config)
      at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.generation == generation_) find(slot.config) = slot;
  }

  std::vector<Slot> slots_;
  uint32_t generation_ = 1;
  size_t size_ = 0;
};

}  // namespace sluice::text::grammar
