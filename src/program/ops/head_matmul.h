// head_matmul: one small matrix a head: k_b takes queries into the latent space, v_b takes latents out of it.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// Which dimension of the stored matrix the sum runs along. Files hold k_b either as [latent, nope] (reduce
/// the contiguous columns) or inside an unsplit kv_b as [nope, latent] (reduce the rows): a blocked type
/// cannot be transposed without requantising it, so the op reads both.
enum class Reduce : uint8_t { Columns, Rows };

/// Columns: out[r, h, n] = sum over c of in[r, h, c] * weight[h, n, c]
/// Rows:    out[r, h, n] = sum over c of in[r, h, c] * weight[h, c, n]
struct HeadMatmul {
  static constexpr const char* kName = "head_matmul";
  Read in;      // [rows, heads, inputs]
  Read weight;  // [heads, outputs, inputs] or [heads, inputs, outputs]
  Write out;    // [rows, heads, outputs]
  Reduce reduce = Reduce::Columns;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
