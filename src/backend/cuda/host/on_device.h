// Which device this thread's calls go to: CUDA's own "current device", set for as long as it is needed.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "backend/cuda/host/cuda_check.h"

namespace sluice::backend::cuda {

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device));
  return device;
}

/// This thread's calls go to a device, and afterwards to the one they went to before.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device()) { check(cudaSetDevice(device)); }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

/// What has a value on each device: found when the current device is asked for the first time.
template <typename T>
class PerDevice {
 public:
  template <typename Find>
  const T& of_current(Find find) {
    const int device = current_device();
    const std::lock_guard lock(mutex_);
    const auto known = values_.find(device);
    return known != values_.end() ? known->second : values_.emplace(device, find()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, T> values_;
};

}  // namespace sluice::backend::cuda
