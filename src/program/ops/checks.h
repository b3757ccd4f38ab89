// Small helpers that op descriptions share: shape checks with the operand's name, and sums of bytes.
#pragma once

#include <fmt/format.h>

#include "base/error.h"
#include "program/builder.h"
#include "program/program.h"
#include "program/ref_memory.h"

namespace sluice::program {

/// Throws Error "OPERAND: shape [..], expected [..]" unless the shapes agree.
void expect_shape(const Program& p, const char* operand, TensorId id, const std::array<int64_t, 3>& shape);
/// Throws Error unless the operand's elements are of this type (activations) or any float format (weights).
void expect_type(const Program& p, const char* operand, TensorId id, quant::Type type);
/// Throws Error unless the operand is a weight that can be decoded.
void expect_weight(const Program& p, const char* operand, TensorId id);
/// Throws Error unless rows follow each other without gaps inside a row: heads and columns form one vector.
void expect_contiguous(const Program& p, const char* operand, TensorId id);

/// Throws Error where two of these operands of an op across places lie at the same one.
template <typename Operand>
void expect_one_a_place(const Program& p, const std::vector<Operand>& operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Tensor &one = p[operands[i].id], &other = p[operands[j].id];
      if (one.place == other.place) fail("{} and {} are both at place {}", other.name, one.name, one.place);
    }
  }
}

/// Bytes of whole operands; an operand that is absent counts nothing.
double bytes_of(const Program& p, const StepShape& shape, std::initializer_list<TensorId> ids);

/// Bytes of the expert matrices of `weight` that a step's rows select together.
double expert_bytes(const Program& p, TensorId weight, double used, const StepShape& shape);
/// The same of their biases, [1, experts, columns]; one that is absent counts nothing.
double bias_bytes(const Program& p, TensorId bias, double used, const StepShape& shape);

}  // namespace sluice::program
