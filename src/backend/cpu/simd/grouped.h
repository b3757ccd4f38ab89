// Attention of grouped queries over one tile of decoded cache rows, in the vectors of one instruction tier,
// as a table of functions. A result depends on its own query, row and column alone, never on how many there
// are.
#pragma once

#include <cstdint>

namespace sluice::backend::cpu {

enum class Isa : uint8_t;  // isa.h

/// Rows of a tile at most.
inline constexpr int64_t kGroupedRows = 64;

/// Columns of a tile's rows, `stride` floats apart.
struct TileColumns {
  const float* at;
  int64_t stride, rows, columns;
};

struct GroupedKernels {
  /// The numbers of binary16s.
  void (*from_f16)(const uint16_t* x, int64_t count, float* out);
  /// out[t] = scale * q . row t of the keys.
  void (*scores)(const float* q, TileColumns keys, float scale, float* out);
  /// sums = sums * by + the sum over t of weights[t] * row t of the values.
  void (*weigh)(const float* weights, TileColumns values, float by, float* sums);
};

/// The table of a tier; the nearest one below where a tier has none of its own.
const GroupedKernels& grouped_kernels(Isa isa);

}  // namespace sluice::backend::cpu
