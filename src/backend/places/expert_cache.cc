#include "backend/places/expert_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace sluice::backend::places {

ExpertCache::ExpertCache(const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) {
    CHECK(layer.used < layer.slots && layer.slots <= layer.experts, "{} slots for {} of {} experts",
          layer.slots, layer.used, layer.experts);
    State& state = layers_.emplace_back();
    state.shape = layer;
    state.score.assign(static_cast<size_t>(layer.experts), 0);
    state.slot_of.assign(static_cast<size_t>(layer.experts), kNone);
    for (int32_t s = 0; s < layer.slots; ++s) {
      state.slot_of[static_cast<size_t>(s)] = s;
      state.expert_in.push_back(s);
    }
  }
  wishes_.reserve(layers_.size());
  chosen_.reserve(layers_.size());
}

int64_t ExpertCache::slots() const {
  int64_t slots = 0;
  for (const State& state : layers_) slots += state.shape.slots;
  return slots;
}

void ExpertCache::count(State& state, std::span<const float> ids) {
  const auto rows = static_cast<double>(ids.size()) / static_cast<double>(state.shape.used);
  const auto kept = static_cast<float>(std::exp2(-rows / kHalfLifeRows));
  for (float& score : state.score) score *= kept;
  for (const float id : ids) state.score[static_cast<size_t>(id)] += 1;
}

void ExpertCache::count(size_t layer, std::span<const float> ids) { count(layers_[layer], ids); }

int64_t ExpertCache::deal(size_t layer, const Selection& selection) {
  State& state = layers_[layer];
  count(state, selection.ids);
  const auto used = static_cast<size_t>(state.shape.used);
  int64_t misses = 0;
  for (size_t first = 0; first < selection.ids.size(); first += used) {
    bool all_hit = true;
    for (size_t i = first; i < first + used; ++i) {
      const int32_t slot = state.slot_of[static_cast<size_t>(selection.ids[i])];
      selection.slot_ids[i] = static_cast<float>(slot);
      selection.slot_weights[i] = 0;
      if (slot == kNone) {
        all_hit = false, ++misses;
        continue;
      }
      selection.slot_weights[i] = std::exchange(selection.weights[i], 0.0f);
      selection.ids[i] = kNone;
    }
    if (!all_hit) pad(state, selection.slot_ids.subspan(first, used));
  }
  selected_ += static_cast<int64_t>(selection.ids.size());
  hits_ += static_cast<int64_t>(selection.ids.size()) - misses;
  return misses;
}

void ExpertCache::pad(const State& state, std::span<float> slot_ids) {
  int32_t next = 0;
  for (float& id : slot_ids) {
    if (id != kNone) continue;
    while (next == state.on_its_way ||
           std::ranges::find(slot_ids, static_cast<float>(next)) != slot_ids.end())
      ++next;
    id = static_cast<float>(next);
  }
}

std::span<const Swap> ExpertCache::choose(size_t most) {
  wishes_.clear();
  for (size_t l = 0; l < layers_.size(); ++l) {
    const State& state = layers_[l];
    if (state.on_its_way != kNone) continue;
    // The slot that is worth least, and the expert without one that is worth most.
    int32_t slot = kNone, expert = kNone;
    float least = std::numeric_limits<float>::infinity(), best = 0;
    for (int32_t s = 0; s < state.shape.slots; ++s) {
      const int32_t in = state.expert_in[static_cast<size_t>(s)];
      const float score = in == kNone ? -kWorthACopy : state.score[static_cast<size_t>(in)];
      if (score < least) least = score, slot = s;
    }
    for (int32_t e = 0; e < state.shape.experts; ++e) {
      const float score = state.score[static_cast<size_t>(e)];
      if (state.slot_of[static_cast<size_t>(e)] == kNone && score > best) best = score, expert = e;
    }
    if (expert == kNone) continue;
    // Counts of chance events lie as far apart as their roots by chance alone.
    const float gain = best - least - kWorthACopy - std::sqrt(best + std::max(least, 0.0f));
    if (gain > 0) wishes_.push_back({gain, {l, slot, expert}});
  }
  std::ranges::sort(wishes_, [](const Wish& a, const Wish& b) { return a.gain > b.gain; });
  chosen_.clear();
  for (size_t i = 0; i < std::min(most, wishes_.size()); ++i) {
    const Swap& swap = wishes_[i].swap;
    State& state = layers_[swap.layer];
    int32_t& in = state.expert_in[static_cast<size_t>(swap.slot)];
    if (in != kNone) state.slot_of[static_cast<size_t>(in)] = kNone;
    in = kNone;
    state.on_its_way = swap.slot;
    chosen_.push_back(swap);
  }
  return chosen_;
}

void ExpertCache::arrived(const Swap& swap) {
  State& state = layers_[swap.layer];
  state.on_its_way = kNone;
  state.expert_in[static_cast<size_t>(swap.slot)] = swap.expert;
  state.slot_of[static_cast<size_t>(swap.expert)] = swap.slot;
}

void ExpertCache::failed(const Swap& swap) { layers_[swap.layer].on_its_way = kNone; }

}  // namespace sluice::backend::places
