// Fills slots of experts (program/expert_slots.h) while steps run: on a stream of its own, packed as weights
// are at load.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/cuda/host/upload.h"
#include "backend/cuda/host/weights.h"
#include "program/expert_slots.h"

namespace sluice::backend::cuda {

class SlotLane : public program::SlotFiller {
 public:
  /// Of an executable on this device. most: bytes a second; 0: no limit.
  SlotLane(int device, const program::Source& source, std::shared_ptr<const Weights> weights,
           double most_bytes_per_second);

  /// Its pinned memory is taken when it is first called.
  void fill(program::TensorId weight, int64_t slot, std::span<const std::byte> matrix) override;
  /// Where a weight of its program lies.
  Planes planes_of(program::TensorId weight) const;

 private:
  int device_;
  std::vector<program::Tensor> tensors_;
  program::WeightBytes files_;
  std::shared_ptr<const Weights> weights_;  // null: nothing is loaded, and nothing filled
  double most_bytes_per_second_;
  std::optional<UploadLane> lane_;
};

}  // namespace sluice::backend::cuda
