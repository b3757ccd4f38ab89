#include "backend/cuda/host/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/format.h"
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

/// Bytes of a row in each plane that is copied.
struct RowBytes {
  int64_t codes, scales, high;
  int code_bytes, scale_bytes, high_bytes;  ///< of 32 columns

  explicit RowBytes(const Matrix& m) {
    const Format* format = find_format(m.type);
    CHECK(format != nullptr && format->codes >= 16, "{}", static_cast<int>(m.type));
    const int64_t blocks = m.columns / 32;
    code_bytes = format->codes, scale_bytes = format->scale, high_bytes = format->high;
    codes = blocks * format->codes, scales = blocks * format->scale, high = blocks * format->high;
  }
};

/// apart: bytes from a stretch to the other one.
RowPairs map_pairs(const Matrix& m, const RowBytes& row, const std::array<int64_t, 3>& apart, int groups) {
  const int64_t rows = (m.matrices - 1) * m.matrix_rows + m.rows;
  const int blocks = groups * kMapLine / row.code_bytes, high_bytes = blocks * row.high_bytes;
  RowPairs pairs{
      map_bytes<4>(m.codes + m.first_row * row.codes, {kMapLine, rows, 2, row.codes / kMapLine},
                   {row.codes, apart[0], kMapLine}, {kMapLine, kMapRows, 2, groups},
                   CU_TENSOR_MAP_SWIZZLE_128B),
      map_bytes<3>(m.scale + m.first_row * row.scales, {row.scales, rows, 2}, {row.scales, apart[1]},
                   {blocks * row.scale_bytes, kMapRows, 2}, CU_TENSOR_MAP_SWIZZLE_NONE),
      {},
      false};
  if (row.high > 0) {
    CHECK(high_bytes == kMapLine || high_bytes == kMapLine / 2, "{} bytes of top bits", high_bytes);
    pairs.high = map_bytes<3>(
        m.high + m.first_row * row.high, {row.high, rows, 2}, {row.high, apart[2]}, {high_bytes, kMapRows, 2},
        high_bytes == kMapLine ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
  }
  return pairs;
}

}  // namespace

CUtensorMap map_tiles(const uint8_t* base, int64_t row_bytes, int64_t rows, int group_bytes, int tile_rows,
                      int groups) {
  return map_bytes<3>(base, {group_bytes, rows, row_bytes / group_bytes}, {row_bytes, group_bytes},
                      {group_bytes, tile_rows, groups},
                      group_bytes == kMapLine ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap map_n_tiles(const uint8_t* base, int64_t row_bytes, int64_t rows, int n_tile_bytes) {
  return map_bytes<2>(base, {row_bytes, rows}, {row_bytes}, {n_tile_bytes, kNTileRows},
                      CU_TENSOR_MAP_SWIZZLE_NONE);
}

RowPairs map_row_pairs(const Matrix& matrix, int groups) {
  const RowBytes row(matrix);
  return map_pairs(matrix, row, {kMapRows * row.codes, kMapRows * row.scales, kMapRows * row.high}, groups);
}

RowPairs map_row_pairs(const Matrix& matrix, const Matrix& second, int groups) {
  CHECK(matrix.columns == second.columns && matrix.matrix_rows == second.matrix_rows &&
            matrix.type == second.type,
        "matrices of {} and {} columns, {} and {} rows apart", matrix.columns, second.columns,
        matrix.matrix_rows, second.matrix_rows);
  const RowBytes row(matrix);
  const auto apart = [&](const uint8_t* a, const uint8_t* b, int64_t bytes) {
    return (b + second.first_row * bytes) - (a + matrix.first_row * bytes);
  };
  const std::array<int64_t, 3> from_first{apart(matrix.codes, second.codes, row.codes),
                                          apart(matrix.scale, second.scale, row.scales),
                                          row.high > 0 ? apart(matrix.high, second.high, row.high) : 0};
  const bool swapped = from_first[0] < 0;
  CHECK((from_first[1] < 0) == swapped && (row.high == 0 || (from_first[2] < 0) == swapped),
        "codes are {} bytes apart, scales {}", from_first[0], from_first[1]);
  if (!swapped) return map_pairs(matrix, row, from_first, groups);
  RowPairs pairs = map_pairs(second, row, {-from_first[0], -from_first[1], -from_first[2]}, groups);
  pairs.swapped = true;
  return pairs;
}

}  // namespace sluice::backend::cuda
