// What the files of kernels share: operands as parameters, and dispatches put together.
#pragma once

#include <bit>

#include "backend/vulkan/kernels.h"

namespace sluice::backend::vulkan {

/// Where an activation lies, in floats.
struct Place {
  uint32_t at = 0, row = 0, head = 0;
};

/// Makes the dispatches of one op.
struct Emit {
  const Layout& layout;
  const Sizes& sizes;
  std::vector<Dispatch> list = {};

  const program::Tensor& operator[](program::TensorId id) const { return layout.program[id]; }
  Place place(program::TensorId id) const;
  /// How many rows this activation has in such steps, and which word of the step's data says it exactly.
  int64_t rows(program::TensorId id) const;
  uint32_t rows_word(program::TensorId id) const { return (*this)[id].shape[0] == program::kOutputRows; }
  uint32_t columns(program::TensorId id) const { return static_cast<uint32_t>((*this)[id].columns()); }
  uint32_t heads(program::TensorId id) const { return static_cast<uint32_t>((*this)[id].heads()); }
  /// Whether all of its offsets are multiples of four floats.
  bool is_aligned(program::TensorId id) const;
  BoundWeight weight(program::TensorId id) const { return {id, false}; }
  BoundWeight vector(program::TensorId id) const { return {id, true}; }
};

inline uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t groups(int64_t count, int64_t each) {
  return static_cast<uint32_t>((count + each - 1) / each);
}

/// Bytes from a weight's beginning to that of a view of it, from a matrix to the next, from a row to the
/// next.
struct WeightBytesAt {
  uint32_t first = 0, matrix = 0, row = 0;
};
WeightBytesAt bytes_at(const program::Tensor& tensor);

// By file: products.cc, attention.cc, small_ops.cc.
struct ProductOf {
  program::TensorId in, weight, out;
  bool by_head = false;  ///< a matrix a head
  program::TensorId gate = program::kNoTensor, added = program::kNoTensor, norm = program::kNoTensor,
                    ids = program::kNoTensor;
  float epsilon = 0;
  program::Swiglu form = {};
};
void emit_product(Emit& emit, const ProductOf& product);
void emit(Emit& emit, const program::MoeDownAdd& op);
void emit_rows_product(Emit& emit, const program::HeadMatmul& op);
void emit(Emit& emit, const program::Embed& op);
void emit(Emit& emit, const program::KvAppend& op);
void emit(Emit& emit, const program::MlaAttend& op);
void emit(Emit& emit, const program::Attend& op);
void emit(Emit& emit, const program::RmsNorm& op);
void emit(Emit& emit, const program::Rope& op);
void emit(Emit& emit, const program::Route& op);
void emit(Emit& emit, const program::SiluMul& op);
void emit(Emit& emit, const program::Add& op);
void emit(Emit& emit, const program::AddBias& op);
void emit(Emit& emit, const program::ExpertBias& op);
void emit(Emit& emit, const program::ExpertCombine& op);
void emit(Emit& emit, const program::AttentionTemperature& op);
void emit(Emit& emit, const program::GatherRows& op);
void emit(Emit& emit, const program::CausalConv& op);
void emit(Emit& emit, const program::SigmoidMul& op);
void emit(Emit& emit, const program::DeltaRule& op);

}  // namespace sluice::backend::vulkan
