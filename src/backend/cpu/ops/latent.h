// What mla_values is made of where rows attend in latent space: the ops that it stands for.
#pragma once

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {

/// Rows 0 to `rows` of `in` times matrices stored as [outputs, inputs] (Reduce::Columns).
void multiply_heads(const program::HeadMatmul& op, const Context& c, int64_t rows, const Rows<float>& in,
                    const Rows<float>& out);
int64_t multiply_heads_scratch(const program::Program& p, const program::HeadMatmul& op,
                               const program::CompileOptions& options);

void attend_latent(const program::Program& p, const program::MlaAttend& op, const Context& c);
/// Whether a step is one row so short that its workers best take heads: the same as in multiply_heads, so
/// that nobody waits for anybody between the three ops.
bool attends_own_heads(const program::Program& p, const program::MlaAttend& op, const Context& c);
/// Then instead: of this worker's heads alone. The same bits.
void attend_own_heads(const program::Program& p, const program::MlaAttend& op, const Context& c);
int64_t latent_scratch(const program::Program& p, const program::MlaAttend& op,
                       const program::CompileOptions& options);

/// Cache rows, one behind the other, to a tile from its row `first` on (AttendKernels::decode_f16 says which
/// rows may); floats: [count][columns], for formats that have no shorter way.
void decode_rows(const AttendKernels& kernels, const Cache& cache, const std::byte* rows, AttendShape shape,
                 int64_t first, int64_t count, float* floats, float* tile);

}  // namespace sluice::backend::cpu
