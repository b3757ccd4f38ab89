// The weights of a model on the device, packed (host/format.h), in a few allocations; shared by all that is
// compiled over them.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "backend/cuda/host/buffer.h"
#include "backend/cuda/host/repack.h"
#include "program/backend.h"

namespace sluice::backend::cuda {

class Weights : public program::WeightSet {
 public:
  /// Where a tensor lies: its planes, and, of one of few numbers (norms, biases), float32.
  struct Place {
    char* planes = nullptr;
    float* vector = nullptr;
  };

  /// Uploads what the ops of these programs read to the current device. Throws Error when the device has too
  /// little memory.
  Weights(std::span<const program::Source> sources, const program::Progress& progress);

  /// The place of a whole tensor, by where its bytes begin in the file. It must have been uploaded.
  const Place& at(const std::byte* file) const;
  int64_t bytes() const override;
  int device() const { return device_; }

  /// A program's weights as they would be held; streamed ones take nothing of their own.
  static std::vector<program::PackedWeight> held(const program::Program& program);

 private:
  void place_streamed(const program::Source& source);

  int device_;
  std::vector<Buffer> arenas_;
  Buffer rooms_;  // of streamed weights
  std::map<const std::byte*, Place> places_;
};

/// The planes of a tensor that lies there.
Planes planes_at(const program::Tensor& tensor, char* base);

/// Room for the streamed weights of a program, of which those of two loads are there at once.
int64_t streamed_bytes(const program::Program& program);

/// By TensorId: whether it stores a weight that some op reads.
std::vector<bool> used_weights(const program::Program& program);

}  // namespace sluice::backend::cuda
