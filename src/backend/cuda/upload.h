// Weights on their way from the mapped file to packed device memory: some threads copy pieces into pinned
// memory, each with a stream of its own on which they are uploaded and repacked, so that the file is read
// meanwhile.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backend/cuda/repack.h"

namespace sluice::backend::cuda {

/// A whole tensor: its bytes in the file, and where its planes go.
struct Upload {
  quant::Type type;
  std::span<const std::byte> bytes;
  Planes planes;  ///< of a float type: codes alone, the bytes as they are
};

/// To the current device. Returns when all is in place. progress (may be empty): bytes done and in all.
void upload(const std::vector<Upload>& uploads, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sluice::backend::cuda
