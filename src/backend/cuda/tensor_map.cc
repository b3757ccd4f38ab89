#include "backend/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <utility>

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

/// Bytes in so many dimensions: sizes, strides of all but the first, what a copy takes.
template <int kDimensions>
CUtensorMap map_bytes(const uint8_t* base, const int64_t (&size)[kDimensions],
                      const int64_t (&stride)[kDimensions - 1], const int (&box)[kDimensions],
                      CUtensorMapSwizzle swizzle) {
  static const auto encode = encode_function();
  cuuint64_t sizes[kDimensions], strides[kDimensions - 1];
  cuuint32_t boxes[kDimensions], steps[kDimensions];
  for (int i = 0; i < kDimensions; ++i) {
    sizes[i] = static_cast<cuuint64_t>(size[i]), boxes[i] = static_cast<cuuint32_t>(box[i]), steps[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(stride[i - 1]);
  }
  CUtensorMap map{};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kDimensions, const_cast<uint8_t*>(base),
                                 sizes, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: {}", static_cast<int>(result));
  return map;
}

RowPairs map_pairs(const Matrix& m, int64_t codes_apart, int64_t scales_apart, int groups) {
  const int64_t code_bytes = m.columns / 2, scale_bytes = m.columns / 32 * 2;
  const int64_t rows = (m.matrices - 1) * m.matrix_rows + m.rows;
  return {
      map_bytes<4>(m.codes + m.first_row * code_bytes, {kMapLine, rows, 2, code_bytes / kMapLine},
                   {code_bytes, codes_apart, kMapLine}, {kMapLine, kMapRows, 2, groups},
                   CU_TENSOR_MAP_SWIZZLE_128B),
      map_bytes<3>(m.scale + m.first_row * scale_bytes, {scale_bytes, rows, 2}, {scale_bytes, scales_apart},
                   {groups * kMapLine / 16 * 2, kMapRows, 2}, CU_TENSOR_MAP_SWIZZLE_NONE),
      false};
}

}  // namespace

CUtensorMap map_tiles(const uint8_t* base, int64_t row_bytes, int64_t rows, int group_bytes, int tile_rows,
                      int groups) {
  return map_bytes<3>(base, {group_bytes, rows, row_bytes / group_bytes}, {row_bytes, group_bytes},
                      {group_bytes, tile_rows, groups},
                      group_bytes == kMapLine ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap map_strips(const uint8_t* base, int64_t row_bytes, int64_t rows, int strip_bytes) {
  return map_bytes<2>(base, {row_bytes, rows}, {row_bytes}, {strip_bytes, kStripRows},
                      CU_TENSOR_MAP_SWIZZLE_NONE);
}

RowPairs map_row_pairs(const Matrix& matrix, int groups) {
  return map_pairs(matrix, kMapRows * matrix.columns / 2, kMapRows * matrix.columns / 32 * 2, groups);
}

RowPairs map_row_pairs(const Matrix& matrix, const Matrix& second, int groups) {
  const auto apart = [](const Matrix& a, const Matrix& b) {
    return std::pair{
        (b.codes + b.first_row * (b.columns / 2)) - (a.codes + a.first_row * (a.columns / 2)),
        (b.scale + b.first_row * (b.columns / 32 * 2)) - (a.scale + a.first_row * (a.columns / 32 * 2))};
  };
  CHECK(matrix.columns == second.columns && matrix.matrix_rows == second.matrix_rows,
        "matrices of {} and {} columns, {} and {} rows apart", matrix.columns, second.columns,
        matrix.matrix_rows, second.matrix_rows);
  const auto [codes, scales] = apart(matrix, second);
  CHECK((codes < 0) == (scales < 0), "codes are {} bytes apart, scales {}", codes, scales);
  if (codes > 0) return map_pairs(matrix, codes, scales, groups);
  RowPairs pairs = map_pairs(second, -codes, -scales, groups);
  pairs.swapped = true;
  return pairs;
}

}  // namespace sluice::backend::cuda
