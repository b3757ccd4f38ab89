// Weights on their way from the mapped file to packed device memory: some threads copy pieces into pinned
// memory, each with a stream of its own on which they are uploaded and repacked, so that the file is read
// meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backend/cuda/host/repack.h"

namespace sluice::backend::cuda {

/// A whole tensor: its bytes in the file, and where its planes go.
struct Upload {
  quant::Type type;
  std::span<const std::byte> bytes;
  Planes planes;  ///< of a float type: codes alone, the bytes as they are

  int64_t numbers() const {
    const quant::TypeInfo& info = quant::type_info(type);
    return static_cast<int64_t>(bytes.size()) / info.bytes * info.block;
  }
};

/// A run of whole blocks of a tensor, a multiple of 256 numbers but for the last.
struct UploadPiece {
  const Upload* upload;
  int64_t first, count;  ///< numbers

  int64_t bytes() const { return quant::bytes_of(quant::type_info(upload->type), count); }
};
/// Calls add(piece) with pieces of a tensor, or of a run of it, of so many bytes at most. They point to it.
template <typename F>
void cut_upload(const Upload& upload, int64_t first, int64_t count, int64_t piece_bytes, const F& add) {
  const quant::TypeInfo& info = quant::type_info(upload.type);
  const int64_t step = piece_bytes / info.bytes * info.block / 256 * 256;
  for (const int64_t end = first + count; first < end; first += step)
    add(UploadPiece{&upload, first, std::min(step, end - first)});
}
/// Pieces of whole tensors. They point to the uploads.
std::vector<UploadPiece> cut_uploads(const std::vector<Upload>& uploads, int64_t piece_bytes);

/// What a thread works with: a stream, and pinned memory, of which one half is filled while the other is
/// uploaded.
class UploadLane {
 public:
  /// Of the current device.
  explicit UploadLane(int64_t piece_bytes);
  ~UploadLane();
  UploadLane(const UploadLane&) = delete;
  UploadLane& operator=(const UploadLane&) = delete;

  /// Returns when the piece is in pinned memory and on its way. after: what the stream waits for before the
  /// tensor is written; null: nothing.
  void send(const UploadPiece& piece, cudaEvent_t after = nullptr);
  void finish();
  cudaStream_t stream() const { return stream_; }
  static int64_t device_bytes(int64_t piece_bytes) { return kHalves * piece_bytes; }

 private:
  static constexpr int kHalves = 2;
  struct Half {
    std::byte* pinned = nullptr;
    uint8_t* raw = nullptr;
    cudaEvent_t done = nullptr;
  };
  Half halves_[kHalves];
  cudaStream_t stream_ = nullptr;
  size_t next_ = 0;
};

/// To the current device. Returns when all is in place. progress (may be empty): bytes done and in all.
void upload(const std::vector<Upload>& uploads, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sluice::backend::cuda
