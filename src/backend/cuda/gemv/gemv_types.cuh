// The kernel of a type: what the files of gemv.h share.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/host/format.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {

/// Calls start.template operator()<T>() for a blocked type and returns true; else false.
template <typename Start>
bool with_type(quant::Type type, Start&& start) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return ((type == kFormats[i].type && (start.template operator()<kFormats[i].type>(), true)) || ...);
  }
  (std::make_index_sequence<std::size(kFormats)>{});
}

/// The types of a second weight in a launch with one of type T: the same, or as files mix them (shared
/// experts and attention finer than routed experts).
template <quant::Type T, typename Start>
bool with_second_type(quant::Type second, Start&& start) {
  using quant::Type;
  if (second == T) return start.template operator()<T, T>(), true;
  if constexpr (T == Type::Q4_0 || T == Type::Q4_K || T == Type::IQ4_XS || T == Type::MXFP4) {
    switch (second) {
      case Type::Q5_K: return start.template operator()<T, Type::Q5_K>(), true;
      case Type::Q6_K: return start.template operator()<T, Type::Q6_K>(), true;
      case Type::Q8_0: return start.template operator()<T, Type::Q8_0>(), true;
      default: return false;
    }
  }
  return false;
}

/// Both.
template <typename Start>
bool with_types(quant::Type routed, quant::Type shared, Start&& start) {
  bool there = false;
  with_type(routed, [&]<quant::Type T>() { there = with_second_type<T>(shared, start); });
  return there;
}

/// A thread block an SM, which leaves room for the next kernel's; two where a warp would have several tasks.
inline LaunchShape gemv_launch(const Context& context, int tasks, int64_t shared_bytes) {
  const int each = tasks > context.sm_count * kGemvWarps ? 2 : 1;
  const int blocks = std::min(each * context.sm_count, tasks);
  return {dim3(static_cast<unsigned>(blocks)), dim3(kGemvThreads), shared_bytes};
}

/// Whether every block's number in the planes is an int.
inline bool blocks_fit_int(const Matrix& m) {
  return (m.first_row + m.matrices * m.matrix_rows + m.rows) * (m.columns / 32) < int64_t{1} << 31;
}

inline bool is_aligned(const void* at) { return reinterpret_cast<size_t>(at) % 16 == 0; }

}  // namespace sluice::backend::cuda
