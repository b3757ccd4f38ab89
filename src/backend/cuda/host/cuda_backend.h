// The CUDA backend: one graph of kernels a step. It lives in a shared object of its own (libsluice_cuda.so),
// which is loaded where a driver is present: this function is its only door.
#pragma once

#include "program/backend.h"

namespace sluice::backend {

/// A new backend on a device, by its number, owned by the caller; or null and one line in `why` [why_size]
/// when it cannot be used.
extern "C" __attribute__((visibility("default"))) program::Backend* sluice_make_cuda_backend(int device,
                                                                                             char* why,
                                                                                             size_t why_size);

/// Before a backend is made on the device: its work is held to so many SMs (host/sm_share.h); or false and
/// why.
extern "C" __attribute__((visibility("default"))) bool sluice_hold_to_sms(int device, int sms, char* why,
                                                                          size_t why_size);

/// A name by which ranks find each other, of 128 bytes; or false and why.
extern "C" __attribute__((visibility("default"))) bool sluice_make_rank_id(char* id, char* why,
                                                                           size_t why_size);
/// The same as sluice_make_cuda_backend for one of several processes, each with a GPU: its programs are sides
/// of one that was cut (program/places.h), and GPUs exchange by themselves. Waits for the other ranks.
extern "C" __attribute__((visibility("default"))) program::Backend* sluice_make_cuda_rank(
    int device, int rank, int ranks, const char* id, char* why, size_t why_size);
/// From any thread: steps that wait for a rank that is gone end.
extern "C" __attribute__((visibility("default"))) void sluice_abort_cuda_ranks();
/// Nanoseconds that the device has spent on sums of ranks, waiting for the others included. While no step
/// runs.
extern "C" __attribute__((visibility("default"))) int64_t sluice_cuda_rank_sums_ns();

}  // namespace sluice::backend
