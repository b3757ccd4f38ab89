// The kernel of a type: what the files of gemv.h share.
#pragma once

#include <algorithm>

#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/host/format.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {

/// Calls start.template operator()<T>() for a blocked type and returns true; else false.
template <typename Start>
bool with_type(quant::Type type, Start&& start) {
  using quant::Type;
  switch (type) {
    case Type::Q4_0: return start.template operator()<Type::Q4_0>(), true;
    case Type::Q4_1: return start.template operator()<Type::Q4_1>(), true;
    case Type::Q5_0: return start.template operator()<Type::Q5_0>(), true;
    case Type::Q5_1: return start.template operator()<Type::Q5_1>(), true;
    case Type::Q8_0: return start.template operator()<Type::Q8_0>(), true;
    case Type::Q2_K: return start.template operator()<Type::Q2_K>(), true;
    case Type::Q3_K: return start.template operator()<Type::Q3_K>(), true;
    case Type::Q4_K: return start.template operator()<Type::Q4_K>(), true;
    case Type::Q5_K: return start.template operator()<Type::Q5_K>(), true;
    case Type::Q6_K: return start.template operator()<Type::Q6_K>(), true;
    case Type::IQ4_NL: return start.template operator()<Type::IQ4_NL>(), true;
    case Type::IQ4_XS: return start.template operator()<Type::IQ4_XS>(), true;
    case Type::MXFP4: return start.template operator()<Type::MXFP4>(), true;
    case Type::NVFP4: return start.template operator()<Type::NVFP4>(), true;
    case Type::IQ2_XXS: return start.template operator()<Type::IQ2_XXS>(), true;
    case Type::IQ2_XS: return start.template operator()<Type::IQ2_XS>(), true;
    case Type::IQ2_S: return start.template operator()<Type::IQ2_S>(), true;
    case Type::IQ3_XXS: return start.template operator()<Type::IQ3_XXS>(), true;
    case Type::IQ3_S: return start.template operator()<Type::IQ3_S>(), true;
    case Type::IQ1_S: return start.template operator()<Type::IQ1_S>(), true;
    case Type::IQ1_M: return start.template operator()<Type::IQ1_M>(), true;
    default: return false;
  }
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
