// A stream and an event of the current device, each with an owner.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/sm_share.h"

namespace sluice::backend::cuda {

/// Work that runs in its order.
class Stream {
 public:
  Stream() : stream_(make_stream()) {}
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
};

/// A place in the stream that can be waited for.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream)); }
  void wait() const { check(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace sluice::backend::cuda
