// Which experts of layers at the second place have copies at the first: dealing a row's selection out between
// the two, and choosing by use what is to be copied next. Knows numbers of layers, experts and slots alone;
// who copies is expert_copies.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::backend::places {

/// An expert and the slot of its layer that it goes to.
struct Swap {
  size_t layer = 0;
  int32_t slot = 0, expert = 0;
};

class ExpertCache {
 public:
  /// used: experts that a row selects, fewer than there are slots.
  struct Layer {
    int64_t experts = 0, slots = 0, used = 0;
  };
  /// Rows after which a selection counts half of a new one: what is used often, lately.
  static constexpr double kHalfLifeRows = 64;
  /// Selections by which an expert must have been ahead of the one whose slot it takes: a copy costs the
  /// machine about what computing some experts does.
  static constexpr float kWorthACopy = 3;

  /// Slot s of every layer has a copy of expert s from the start.
  explicit ExpertCache(const std::vector<Layer>& layers);

  /// A step's selection of a layer, [rows][used], and where it goes.
  struct Selection {
    std::span<float> ids, weights;            ///< in: all; out: the second place's, -1 and 0 for others
    std::span<float> slot_ids, slot_weights;  ///< out: the first place's; others are of distinct slots, and 0
  };
  /// Deals a step's selection out and counts it. How many experts are the second place's.
  int64_t deal(size_t layer, const Selection& selection);
  /// Counts a selection of a step that ran otherwise.
  void count(size_t layer, std::span<const float> ids);

  /// What is worth a copy now, `most` of them at most, one a layer. Their slots are nobody's until they have
  /// arrived. The best first; valid until the next call.
  std::span<const Swap> choose(size_t most);
  void arrived(const Swap& swap);
  /// The slot holds nothing.
  void failed(const Swap& swap);

  int64_t selected() const { return selected_; }
  int64_t hits() const { return hits_; }
  int64_t slots() const;
  /// By expert of a layer, the slot that has a copy; -1: none has. It stays where it is.
  std::span<const int32_t> slots_of(size_t layer) const { return layers_[layer].slot_of; }
  int32_t slot_of(size_t layer, int32_t expert) const { return slots_of(layer)[static_cast<size_t>(expert)]; }

 private:
  static constexpr int32_t kNone = -1;
  struct State {
    Layer shape;
    std::vector<float> score;        // by expert: selections, older ones for less
    std::vector<int32_t> slot_of;    // by expert
    std::vector<int32_t> expert_in;  // by slot
    int32_t on_its_way = kNone;      // the slot that is being filled
  };
  struct Wish {
    float gain;
    Swap swap;
  };

  /// Slots for a row's experts that have none, all distinct; weights of these are 0.
  static void pad(const State& state, std::span<float> slot_ids);
  static void count(State& state, std::span<const float> ids);

  std::vector<State> layers_;
  std::vector<Wish> wishes_;
  std::vector<Swap> chosen_;
  int64_t selected_ = 0, hits_ = 0;
};

}  // namespace sluice::backend::places
