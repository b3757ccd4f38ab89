#include "backend/cuda/upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/format.h"
#include "backend/cuda/on_device.h"

namespace sluice::backend::cuda {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;
constexpr int kThreads = 8;
constexpr int kBuffers = 2;  // a thread: one is filled while the other is uploaded

/// A run of whole blocks of a tensor, a multiple of 256 numbers but for the last.
struct Piece {
  const Upload* upload;
  int64_t first, count;  // numbers
};

std::vector<Piece> cut(const std::vector<Upload>& uploads) {
  std::vector<Piece> pieces;
  for (const Upload& upload : uploads) {
    const quant::TypeInfo& info = quant::type_info(upload.type);
    const int64_t numbers = static_cast<int64_t>(upload.bytes.size()) / info.bytes * info.block;
    const int64_t step = kPieceBytes / info.bytes * info.block / 256 * 256;
    for (int64_t first = 0; first < numbers; first += step) {
      pieces.push_back({&upload, first, std::min(step, numbers - first)});
    }
  }
  return pieces;
}

/// What a thread works with.
class Lane {
 public:
  Lane() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (Slot& slot : slots_) {
      allocate_pinned(slot.pinned, kPieceBytes);
      allocate_device(slot.raw, kPieceBytes);
      check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
    }
  }
  ~Lane() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (const Slot& slot : slots_) {
      if (slot.pinned != nullptr) cudaFreeHost(slot.pinned);
      if (slot.raw != nullptr) cudaFree(slot.raw);
      if (slot.done != nullptr) cudaEventDestroy(slot.done);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void send(const Piece& piece) {
    Slot& slot = slots_[next_++ % kBuffers];
    check(cudaEventSynchronize(slot.done));
    const Upload& upload = *piece.upload;
    const quant::TypeInfo& info = quant::type_info(upload.type);
    const auto from = static_cast<size_t>(quant::bytes_of(info, piece.first));
    const auto bytes = static_cast<size_t>(quant::bytes_of(info, piece.count));
    std::memcpy(slot.pinned, upload.bytes.data() + from, bytes);
    if (find_format(upload.type) == nullptr) {
      check(cudaMemcpyAsync(upload.planes.codes + from, slot.pinned, bytes, cudaMemcpyHostToDevice, stream_));
    } else {
      check(cudaMemcpyAsync(slot.raw, slot.pinned, bytes, cudaMemcpyHostToDevice, stream_));
      repack(upload.type, slot.raw, piece.first, piece.count, upload.planes, stream_);
    }
    check(cudaEventRecord(slot.done, stream_));
  }
  void finish() { check(cudaStreamSynchronize(stream_)); }

 private:
  struct Slot {
    std::byte* pinned = nullptr;
    uint8_t* raw = nullptr;
    cudaEvent_t done = nullptr;
  };
  Slot slots_[kBuffers];
  cudaStream_t stream_ = nullptr;
  size_t next_ = 0;
};

}  // namespace

void upload(const std::vector<Upload>& uploads, const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<Piece> pieces = cut(uploads);
  int64_t total = 0, done = 0;
  for (const Upload& one : uploads) total += static_cast<int64_t>(one.bytes.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&, device = current_device()] {
    try {
      const OnDevice on(device);
      Lane lane;
      for (size_t i = next++; i < pieces.size(); i = next++) {
        lane.send(pieces[i]);
        const std::lock_guard lock(mutex);
        done += quant::bytes_of(quant::type_info(pieces[i].upload->type), pieces[i].count);
        if (progress) progress(done, total);
      }
      lane.finish();
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = pieces.size();
    }
  };
  // Few bytes: this thread alone, so that a test's small weights cost no threads and no pinned memory eight
  // times.
  const int threads = static_cast<int>(std::min<int64_t>(kThreads, total / kPieceBytes));
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(work);
  work();
  for (std::thread& thread : team) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sluice::backend::cuda
