#include "backend/cuda/host/upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/sm_share.h"

namespace sluice::backend::cuda {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;
constexpr int kThreads = 8;

}  // namespace

std::vector<UploadPiece> cut_uploads(const std::vector<Upload>& uploads, int64_t piece_bytes) {
  std::vector<UploadPiece> pieces;
  const auto add = [&](const UploadPiece& piece) { pieces.push_back(piece); };
  for (const Upload& upload : uploads) cut_upload(upload, 0, upload.numbers(), piece_bytes, add);
  return pieces;
}

UploadLane::UploadLane(int64_t piece_bytes) {
  stream_ = make_stream();
  for (Half& half : halves_) {
    allocate_pinned(half.pinned, piece_bytes);
    allocate_device(half.raw, piece_bytes);
    check(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming));
  }
}

UploadLane::~UploadLane() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const Half& half : halves_) {
    if (half.pinned != nullptr) cudaFreeHost(half.pinned);
    if (half.raw != nullptr) cudaFree(half.raw);
    if (half.done != nullptr) cudaEventDestroy(half.done);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void UploadLane::send(const UploadPiece& piece, cudaEvent_t after) {
  Half& half = halves_[next_++ % kHalves];
  check(cudaEventSynchronize(half.done));
  const Upload& upload = *piece.upload;
  const quant::TypeInfo& info = quant::type_info(upload.type);
  const auto from = static_cast<size_t>(quant::bytes_of(info, piece.first));
  const auto bytes = static_cast<size_t>(piece.bytes());
  std::memcpy(half.pinned, upload.bytes.data() + from, bytes);
  const bool packs = find_format(upload.type) != nullptr;
  if (packs) check(cudaMemcpyAsync(half.raw, half.pinned, bytes, cudaMemcpyHostToDevice, stream_));
  if (after != nullptr) check(cudaStreamWaitEvent(stream_, after, 0));
  if (packs) {
    repack(upload.type, half.raw, piece.first, piece.count, upload.planes, stream_);
  } else {
    check(cudaMemcpyAsync(upload.planes.codes + from, half.pinned, bytes, cudaMemcpyHostToDevice, stream_));
  }
  check(cudaEventRecord(half.done, stream_));
}

void UploadLane::finish() { check(cudaStreamSynchronize(stream_)); }

void upload(const std::vector<Upload>& uploads, const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<UploadPiece> pieces = cut_uploads(uploads, kPieceBytes);
  int64_t total = 0, done = 0;
  for (const Upload& one : uploads) total += static_cast<int64_t>(one.bytes.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&, device = current_device()] {
    try {
      const OnDevice on(device);
      UploadLane lane(kPieceBytes);
      for (size_t i = next++; i < pieces.size(); i = next++) {
        lane.send(pieces[i]);
        const std::lock_guard lock(mutex);
        done += pieces[i].bytes();
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
