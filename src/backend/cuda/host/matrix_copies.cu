// Planes are copied as they are, by one launch for a weight: experts that streamed steps find in slots.
#include "backend/cuda/host/matrix_copies.h"

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/format.h"

namespace sluice::backend::cuda {
namespace {

struct MatrixCopies {
  static constexpr int kMost = 256;  // what a launch's parameters hold
  const uint8_t* from[4];            // by plane
  uint8_t* to[4];
  int64_t bytes[4];  // of a matrix
  int16_t from_matrix[kMost], to_matrix[kMost];
};

/// blockIdx.y: the copy, .z: the plane.
__global__ void copy_planes(const __grid_constant__ MatrixCopies copies) {
  const int64_t bytes = copies.bytes[blockIdx.z];
  const uint8_t* const from = copies.from[blockIdx.z] + copies.from_matrix[blockIdx.y] * bytes;
  uint8_t* const to = copies.to[blockIdx.z] + copies.to_matrix[blockIdx.y] * bytes;
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = gridDim.x * blockDim.x;
  if (bytes % 16 == 0) {
    for (int64_t i = first; i < bytes / 16; i += step)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
    for (int64_t i = first; i < bytes; i += step) to[i] = from[i];
  }
}

}  // namespace

void copy_matrices(quant::Type type, int64_t numbers, const Planes& from, std::span<const int32_t> from_of,
                   const Planes& to, cudaStream_t stream) {
  const PlaneBytes bytes = plane_bytes(type, numbers);
  MatrixCopies copies{{from.codes, from.high, from.scale, from.super},
                      {to.codes, to.high, to.scale, to.super},
                      {bytes.codes, bytes.high, bytes.scale, bytes.super},
                      {},
                      {}};
  unsigned count = 0;
  for (size_t i = 0; i <= from_of.size(); ++i) {
    if (count == MatrixCopies::kMost || (count > 0 && i == from_of.size())) {
      copy_planes<<<dim3(16, count, 4), 256, 0, stream>>>(copies);
      check(cudaGetLastError());
      count = 0;
    }
    if (i == from_of.size() || from_of[i] < 0) continue;
    copies.from_matrix[count] = static_cast<int16_t>(from_of[i]);
    copies.to_matrix[count++] = static_cast<int16_t>(i);
  }
}

}  // namespace sluice::backend::cuda
