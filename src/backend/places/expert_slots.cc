#include "backend/places/expert_slots.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "program/slot_reader.h"

namespace sluice::backend::places {

using namespace program;

namespace {

std::vector<ExpertCache::Layer> layers_of(const std::vector<SlottedExperts>& slotted) {
  std::vector<ExpertCache::Layer> layers;
  layers.reserve(slotted.size());
  for (const SlottedExperts& one : slotted) layers.push_back({one.experts, one.slots, one.used});
  return layers;
}

std::span<float> values_of(std::span<const Executable::Peek> read, TensorId id) {
  const auto found = std::ranges::find(read, id, &Executable::Peek::id);
  CHECK(found != read.end(), "tensor {} was not read", id);
  return found->values;
}

}  // namespace

ExpertSlots::ExpertSlots(std::vector<SlottedExperts> slotted, const Source& source, Executable& first,
                         int64_t max_rows, bool fills)
    : slotted_(std::move(slotted)),
      program_(source.program),
      weights_(source.weights),
      first_(first),
      filler_(dynamic_cast<SlotFiller*>(&first)),
      cache_(layers_of(slotted_)) {
  int64_t used = 0;
  for (const SlottedExperts& one : slotted_) used = std::max(used, one.used);
  slot_ids_.resize(static_cast<size_t>(max_rows * used));
  slot_weights_.resize(slot_ids_.size());
  if (!fills) return;
  if (filler_ == nullptr) fail("slots of experts: the first place's backend cannot fill any");
  for (size_t l = 0; l < slotted_.size(); ++l) {
    for (int32_t s = 0; s < slotted_[l].slots; ++s) copy({l, s, s});
  }
  copies_.emplace([this](const Swap& swap) { copy(swap); });
}

std::span<const std::byte> ExpertSlots::bytes_of(TensorId experts, int32_t expert) const {
  const Tensor& weight = program_[experts];
  const quant::TypeInfo& type = quant::type_info(weight.type);
  const std::span<const std::byte> file = weights_[static_cast<size_t>(program_.storage(experts))];
  return file.subspan(static_cast<size_t>(quant::bytes_of(type, weight.offset + expert * weight.stride[0])),
                      static_cast<size_t>(quant::bytes_of(type, weight.shape[1] * weight.columns())));
}

void ExpertSlots::copy(const Swap& swap) {
  for (const SlottedExperts::Matrices& one : slotted_[swap.layer].matrices)
    filler_->fill(one.slots, swap.slot, bytes_of(one.experts, swap.expert));
}

bool ExpertSlots::deal(size_t layer, std::span<const Executable::Peek> read) {
  const SlottedExperts& slotted = slotted_[layer];
  const std::span<float> ids = values_of(read, slotted.ids), weights = values_of(read, slotted.weights);
  const std::span<float> slot_ids = std::span(slot_ids_).first(ids.size()),
                         slot_weights = std::span(slot_weights_).first(ids.size());
  int64_t misses = 0;
  if (copies_) {
    misses = cache_.deal(layer, {ids, weights, slot_ids, slot_weights});
  } else {
    misses = static_cast<int64_t>(ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      slot_ids[i] = static_cast<float>(i % static_cast<size_t>(slotted.used)), slot_weights[i] = 0;
  }
  const int64_t rows = static_cast<int64_t>(ids.size()) / slotted.used;
  first_.poke(slotted.slot_ids, rows, slot_ids);
  first_.poke(slotted.slot_weights, rows, slot_weights);
  return misses > 0;
}

void ExpertSlots::lend_to(Executable& streamed) {
  auto* reader = dynamic_cast<SlotReader*>(&streamed);
  if (!copies_ || reader == nullptr) return;
  for (size_t l = 0; l < slotted_.size(); ++l) {
    for (const SlottedExperts::Matrices& one : slotted_[l].matrices)
      reader->take_from(one.experts, *filler_, one.slots, cache_.slots_of(l));
  }
}

void ExpertSlots::count_step(Executable& ran, int64_t rows) {
  if (!copies_) return;
  for (size_t l = 0; l < slotted_.size(); ++l) {
    counted_.resize(static_cast<size_t>(rows * slotted_[l].used));
    ran.peek(slotted_[l].ids, rows, counted_);
    cache_.count(l, counted_);
  }
}

void ExpertSlots::end_step() {
  if (!copies_) return;
  selected_ = cache_.selected(), hits_ = cache_.hits();
  copies_->take_ended([&](const Swap& swap, bool arrived) {
    arrived ? cache_.arrived(swap) : cache_.failed(swap);
    if (arrived) ++brought_;
  });
  if (copies_->idle()) copies_->begin(cache_.choose(kCopiesAStep));
}

ExpertUse ExpertSlots::use() const {
  if (!copies_) return {};
  return {selected_, hits_, brought_, cache_.slots(), static_cast<int64_t>(slotted_.size())};
}

}  // namespace sluice::backend::places
