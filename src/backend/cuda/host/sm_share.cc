#include "backend/cuda/host/sm_share.h"

#include <cuda.h>

#include <map>
#include <mutex>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/on_device.h"
#include "base/check.h"
#include "base/error.h"

namespace sluice::backend::cuda {
namespace {

/// Some of a device's SMs.
struct SmShare {
  CUgreenCtx context = nullptr;
  int sms = 0;
};

struct SmShares {
  std::mutex mutex;
  std::map<int, SmShare> of_device;
};
SmShares& shares() {
  static SmShares all;
  return all;
}

/// Calls a function of the driver, which the runtime finds: nothing is linked against the driver.
template <typename Function, typename... Args>
void call(const char* name, Args... args) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &function, 12050, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    fail("the driver lacks {}, which drivers for CUDA 12.5 have", name);
  const CUresult result = reinterpret_cast<Function>(function)(args...);
  if (result != CUDA_SUCCESS) fail("{}: error {} of the driver", name, static_cast<int>(result));
}

}  // namespace

void hold_to_sms(int device, int sms) {
  const OnDevice on(device);
  check(cudaFree(nullptr));  // the device's own context first, which the share then belongs to
  CUdevResource all{}, share{};
  call<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource", device, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (sms < 1 || sms >= static_cast<int>(all.sm.smCount))
    fail("{} of the GPU's {} SMs: expected fewer than it has", sms, all.sm.smCount);
  unsigned groups = 1;
  call<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount", &share, &groups, &all, nullptr,
                                               0u, static_cast<unsigned>(sms));
  CUdevResourceDesc description{};
  call<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc", &description, &share, 1u);
  SmShare made{.sms = static_cast<int>(share.sm.smCount)};
  call<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate", &made.context, description, device,
                                    static_cast<unsigned>(CU_GREEN_CTX_DEFAULT_STREAM));
  SmShares& known = shares();
  const std::lock_guard lock(known.mutex);
  CHECK(known.of_device.emplace(device, made).second, "device {} is held to some SMs already", device);
}

int sm_count_of(int device) {
  {
    SmShares& known = shares();
    const std::lock_guard lock(known.mutex);
    if (const auto share = known.of_device.find(device); share != known.of_device.end())
      return share->second.sms;
  }
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  SmShares& known = shares();
  const std::lock_guard lock(known.mutex);
  if (const auto share = known.of_device.find(current_device()); share != known.of_device.end()) {
    call<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate", &stream, share->second.context,
                                            static_cast<unsigned>(CU_STREAM_NON_BLOCKING), 0);
  } else {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return stream;
}

}  // namespace sluice::backend::cuda
