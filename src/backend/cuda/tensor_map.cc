#include "backend/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/cuda_check.h"
#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

/// The driver's function, which the runtime finds: nothing is linked against the driver.
auto encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                         &found));
  CHECK(found == cudaDriverEntryPointSuccess, "cuTensorMapEncodeTiled: {}", static_cast<int>(found));
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap map_rows(const uint8_t* base, int64_t row_bytes, int64_t rows, int groups) {
  static const auto encode = encode_function();
  const auto wide = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  const cuuint64_t size[] = {kMapLine, wide(rows), wide(row_bytes / kMapLine)};
  const cuuint64_t stride[] = {wide(row_bytes), kMapLine};
  const cuuint32_t box[] = {kMapLine, kMapRows, static_cast<cuuint32_t>(groups)}, step[] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<uint8_t*>(base), size,
                                 stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: {}", static_cast<int>(result));
  return map;
}

CUtensorMap map_strips(const uint8_t* base, int64_t row_bytes, int64_t rows, int strip_bytes) {
  static const auto encode = encode_function();
  const cuuint64_t size[] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(strip_bytes), kStripRows}, step[] = {1, 1};
  CUtensorMap map{};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(base), size,
                                 stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: {}", static_cast<int>(result));
  return map;
}

}  // namespace sluice::backend::cuda
