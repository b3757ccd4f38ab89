#include "backend/cuda/host/slot_lane.h"

#include <chrono>
#include <thread>
#include <utility>

#include "backend/cuda/host/format.h"
#include "backend/cuda/host/on_device.h"
#include "base/clock.h"

namespace sluice::backend::cuda {

using namespace program;

namespace {

constexpr int64_t kPieceBytes = 2 << 20;

}  // namespace

SlotLane::SlotLane(int device, const Source& source, std::shared_ptr<const Weights> weights,
                   double most_bytes_per_second)
    : device_(device),
      tensors_(source.program.tensors()),
      files_(source.weights),
      weights_(std::move(weights)),
      most_bytes_per_second_(most_bytes_per_second) {}

Planes SlotLane::planes_of(TensorId weight) const {
  const auto id = static_cast<size_t>(weight);
  return planes_at(tensors_[id], weights_->at(files_[id].data()).planes);
}

void SlotLane::fill(TensorId weight, int64_t slot, std::span<const std::byte> matrix) {
  const OnDevice on(device_);
  if (!lane_) lane_.emplace(kPieceBytes);
  const int64_t begin_ns = now_ns();
  const Tensor& tensor = tensors_[static_cast<size_t>(weight)];
  Planes planes = planes_of(weight);
  const PlaneBytes before = plane_bytes(tensor.type, slot * tensor.shape[1] * tensor.columns());
  planes.codes += before.codes, planes.high += before.high;
  planes.scale += before.scale, planes.super += before.super;
  const std::vector<Upload> uploads{{tensor.type, matrix, planes}};
  for (const UploadPiece& piece : cut_uploads(uploads, kPieceBytes)) lane_->send(piece);
  lane_->finish();
  if (most_bytes_per_second_ <= 0) return;
  const double least_seconds = static_cast<double>(matrix.size()) / most_bytes_per_second_;
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(begin_ns + static_cast<int64_t>(1e9 * least_seconds) - now_ns()));
}

}  // namespace sluice::backend::cuda
