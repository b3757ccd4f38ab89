// Kernels of batch 1, one for each type of weights: they stream weights past one row of activations
// (gemv/gemv.cuh). The kernels for some rows ask them first. Each says whether it could serve, which it
// cannot where weights are of float types or of mixtures that are rare, or where rows lie at odd addresses.
#pragma once

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/router/route.cuh"

namespace sluice::backend::cuda {

/// Rows of an F32 matrix, one behind another; null where there is none.
inline const float* floats_of(const Memory& memory, program::TensorId id) {
  if (id == program::kNoTensor) return nullptr;
  const Matrix m = memory.matrix(id);
  return reinterpret_cast<const float*>(m.codes) + m.first_row * m.columns;
}

/// Types whose routed experts may have biases and another activation than SwiGLU: files have no others, and a
/// test for each output takes time.
constexpr bool takes_biases(quant::Type type) { return type == quant::Type::MXFP4; }

/// Types whose routed experts may have a scale a matrix.
constexpr bool takes_scales(quant::Type type) { return type == quant::Type::NVFP4; }

/// Products of one row with up to four weights of one type and as many columns.
struct GemvProducts {
  struct Part {
    Matrix weight;
    float* out;
    const float* add;             ///< null, or what is added
    const float* bias = nullptr;  ///< the same, of weights
  };
  static constexpr int kMost = 4;
  Part parts[kMost];
  int count = 0;
  const float* in = nullptr;
  const float* norm = nullptr;    ///< null, or weights of a root mean square norm of `in`
  const char* form_at = nullptr;  ///< null, or `in` as the op before has quantised it (without a norm)
  float epsilon = 0;
};
/// Values of heads in codes (Form::RowCodes), as mla_heads and norm_mla_heads of one row give them.
std::optional<FormSpec> given_row_codes(const program::Program& program, program::TensorId values);
bool multiply_gemv(const Context& context, const GemvProducts& products);
/// The same of one row, whose weights are of two types, in one launch.
bool multiply_gemv(const Context& context, const GemvProducts& first, const GemvProducts& second);

/// A router's products with one or two rows, left by the matmul_add that makes the rows for the
/// norm_moe_gate_up that routes them: each thread block adds the part of its columns to one of kCopies sums
/// an expert, in fixed point, so that the order of additions does not matter.
struct RouterSums {
  static constexpr int kRows = 2, kCopies = 4;
  static constexpr float kOne = 1 << 30;  ///< 1 in fixed point
  /// [kRows][kCopies][logits], zero before; null: nobody leaves them.
  unsigned long long* slots = nullptr;
  const float *router = nullptr, *norm = nullptr;  ///< [experts][columns], [columns]
  const float* shared = nullptr;                   ///< null, or [columns] of one logit more
  int logits = 0, columns = 0;

  /// Slots of a step of any of these rows: whoever has them next may have others.
  static constexpr int64_t all_slots(int64_t logits) { return int64_t{kRows} * kCopies * logits; }
  /// The router's row of a logit.
  SLUICE_BOTH const float* row(int logit) const {
    return shared != nullptr && logit == logits - 1 ? shared : router + int64_t{logit} * columns;
  }
};
/// Where matmul_add leaves them for the norm_moe_gate_up behind it (Form::RouterSums).
RouterSums router_sums(const Context& context, const FormBuffer& form);
/// One product of one row with its residual, and the router's sums. handed as above. False: it cannot.
bool add_and_route_gemv(const Context& context, const GemvProducts& product, const RouterSums& sums);
bool adds_and_routes_gemv(const program::Tensor& weight, const program::Tensor& in);

/// Gated products of one row: of one shared or dense matrix, and of selected experts.
struct GemvGated {
  struct Experts {
    Matrix gate, up;     ///< codes null: not there
    Rows<float> out;     ///< [1][slots][outputs]
    const int32_t* ids;  ///< [slots]; null: matrix 0
    int slots;
    const float *gate_bias = nullptr, *up_bias = nullptr;    ///< null, or [matrices][outputs]: takes_biases()
    const float *gate_scale = nullptr, *up_scale = nullptr;  ///< null, or [matrices]: takes_scales()
    program::Swiglu form = {};
  };
  Experts shared{}, routed{};
  const float* in = nullptr;
  const float* norm = nullptr;  ///< null, or weights of a root mean square norm of `in`; without routed ones
  float epsilon = 0;
};
bool gate_gemv(const Context& context, const GemvGated& gated);
/// Whether it could, for one matrix of this type.
bool gates_gemv(quant::Type type);

/// The norm of a row, a router and the selection, before gated products of the experts (GemvGated, whose
/// ids are null).
struct GemvRoute {
  const float *router, *norm, *bias;  ///< router: [experts][columns]; bias: null, or [experts], of selection
  const float* logit_bias;            ///< null, or [experts], without the other bias
  const float* shared_router;         ///< null, or [columns]: by how much the shared experts count
  float epsilon;
  RouteRule rule;
  int32_t* ids;
  float* weights;
  uint64_t* selected;              ///< null, or where the ids are left, too (Form::SelectedExperts)
  const unsigned long long* sums;  ///< null, or RouterSums::words that the launch before has left
  unsigned long long* clear;       ///< null, or an earlier router's words, which are to be zero again
};
bool route_gemv(const Context& context, const GemvGated& gated, const GemvRoute& route);
/// Whether it could, for weights of these types. shared: as routed where there are none.
bool routes_gemv(quant::Type routed, quant::Type shared, int64_t columns, const RouteRule& rule);

/// Down projections of selected and shared experts, weighted, with the residual.
struct GemvDown {
  Matrix down, shared_down;  ///< shared_down.codes null: not there
  const float* bias;         ///< null, or [experts][outputs], where takes_biases()
  Rows<float> in;            ///< [1][slots][columns]
  const float *shared_in, *weights, *residual;
  const int32_t* ids;
  float* out;
  Mailbox selected;  ///< slots null, or where the kernel before leaves the ids while it still runs
};
bool add_down_gemv(const Context& context, const GemvDown& down);

}  // namespace sluice::backend::cuda
