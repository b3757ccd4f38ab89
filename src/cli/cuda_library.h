// The CUDA backend out of its shared object, libsluice_cuda.so beside this program: the program itself knows
// no CUDA and runs on machines without a driver.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/backend.h"

namespace sluice::cli {

/// On a device, by its number. Null, and why in one line, where the library was not built or there is no such
/// device to use.
std::unique_ptr<program::Backend> load_cuda_backend(int device, std::string& why);

/// From now on work on a device is held to so many of its SMs (backend/cuda/host/sm_share.h). False, and why,
/// where that cannot be.
bool hold_cuda_to_sms(int device, int sms, std::string& why);

/// What GPUs of several processes need to find each other; by rank 0, for the others. Empty: why.
std::vector<std::byte> make_cuda_rank_id(std::string& why);
/// The same as load_cuda_backend for one of several processes, whose GPUs exchange by themselves; waits for
/// the others.
std::unique_ptr<program::Backend> load_cuda_rank(int device, int rank, int ranks,
                                                 std::span<const std::byte> id, std::string& why);
/// Steps that wait for a rank that is gone end. From any thread.
void abort_cuda_ranks();
/// Nanoseconds that this process's GPU has spent on sums of ranks, waiting for the others included; 0: not
/// known. While no step runs.
int64_t cuda_rank_sums_ns();

}  // namespace sluice::cli
