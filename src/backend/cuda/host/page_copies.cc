#include "backend/cuda/host/page_copies.h"

#include <utility>

#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/sm_share.h"

namespace sluice::backend::cuda {

using namespace program;

PageCopies::PageCopies(const Memory& memory, std::string format, cudaStream_t steps)
    : device_(current_device()), format_(std::move(format)), steps_(steps) {
  const Program& program = memory.program();
  for (size_t i = 0; i < memory.caches().size(); ++i) {
    const Tensor& cache = program[program.caches()[i]];
    pieces_.push_back({cache.kind == Kind::Cache ? Kept::Page : Kept::State, memory.caches()[i].data(),
                       cache_bytes(cache, {.pages = 1, .state_slots = 1})});
  }
  stream_ = make_stream();
  check(cudaEventCreateWithFlags(&behind_, cudaEventDisableTiming));
}

PageCopies::~PageCopies() {
  cudaStreamSynchronize(stream_);
  for (const cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  for (const cudaEvent_t mark : spare_) cudaEventDestroy(mark);
  cudaEventDestroy(behind_);
  cudaStreamDestroy(stream_);
}

int64_t PageCopies::bytes(Kept what) const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.what == what ? piece.bytes : 0;
  return bytes;
}

std::shared_ptr<std::byte[]> PageCopies::memory(int64_t bytes) const {
  const OnDevice on(device_);
  std::byte* at = nullptr;
  allocate_pinned(at, bytes);
  return {at, [](std::byte* memory) { cudaFreeHost(memory); }};
}

CopyTicket PageCopies::begin_read(Kept what, int32_t index, std::byte* to) {
  const OnDevice on(device_);
  for (const Piece& piece : pieces_) {
    if (piece.what != what) continue;
    const auto bytes = static_cast<size_t>(piece.bytes);
    check(cudaMemcpyAsync(to, piece.data + index * piece.bytes, bytes, cudaMemcpyDeviceToHost, stream_));
    to += bytes;
  }
  return mark();
}

CopyTicket PageCopies::begin_write(Kept what, int32_t index, const std::byte* from) {
  const OnDevice on(device_);
  // A step in flight may have rows of a sequence that has ended, whose pages are others' by now.
  check(cudaEventRecord(behind_, steps_));
  check(cudaStreamWaitEvent(stream_, behind_, 0));
  for (const Piece& piece : pieces_) {
    if (piece.what != what) continue;
    const auto bytes = static_cast<size_t>(piece.bytes);
    check(cudaMemcpyAsync(piece.data + index * piece.bytes, from, bytes, cudaMemcpyHostToDevice, stream_));
    from += bytes;
  }
  return mark();
}

CopyTicket PageCopies::mark() {
  if (spare_.empty()) check(cudaEventCreateWithFlags(&spare_.emplace_back(), cudaEventDisableTiming));
  check(cudaEventRecord(spare_.back(), stream_));
  marks_.push_back(spare_.back());
  spare_.pop_back();
  return CopyTicket{++begun_};
}

void PageCopies::forget_ended() {
  while (!marks_.empty()) {
    const cudaError_t state = cudaEventQuery(marks_.front());
    if (state == cudaErrorNotReady) return;
    check(state);
    spare_.push_back(marks_.front());
    marks_.pop_front();
  }
}

bool PageCopies::ended(CopyTicket copy) {
  const OnDevice on(device_);
  forget_ended();
  return static_cast<uint64_t>(copy) + marks_.size() <= begun_;
}

void PageCopies::wait(CopyTicket copy) {
  if (ended(copy)) return;
  const OnDevice on(device_);
  const uint64_t first = begun_ - marks_.size() + 1;
  check(cudaEventSynchronize(marks_[static_cast<uint64_t>(copy) - first]));
}

}  // namespace sluice::backend::cuda
