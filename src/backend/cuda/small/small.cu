// The ops that move or turn activations and read few weights or none: embed, rms_norm, rope, kv_append,
// silu_mul, sigmoid_mul, gated_norm, add, add_bias, expert_bias, scale, attention_temperature, gather_rows,
// expert_combine. A thread block a row; bound by the way from one kernel to the next.
#include <cuda_fp16.h>

#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;

/// Whether block.x's row is there.
__device__ inline bool is_row(const StepView& step, bool by_outputs = false) {
  return blockIdx.x < (by_outputs ? step.header->outputs : step.header->rows);
}

// --- embed ---

__global__ void __launch_bounds__(kThreads)
    embed(const Timestamps timestamps, StepView step, Matrix table, const int32_t* drawn, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step)) return;
  const int64_t row = blockIdx.x, given = __ldcg(step.tokens + row);
  const int64_t token = given >= 0 ? given : __ldcg(drawn + (-1 - given));
  float* to = out(row);
  if (is_float(table.type)) {
    for (int c = threadIdx.x; c < table.columns; c += kThreads) {
      to[c] = float_number(table.type, table.codes, table.row(0, token) * table.columns + c);
    }
    return;
  }
  with_blocked_type(table.type, [&]<Type T>() {
    for (int b = threadIdx.x; b < table.columns / 32; b += kThreads) {
      const Raw<T> raw = load_block<T>(planes_from(table), table.row(0, token) * (table.columns / 32) + b);
      const Codes codes = unpack_codes<T>(raw);
      const Scales scales = unpack_scales<T>(raw);
#pragma unroll
      for (int c = 0; c < 32; ++c) to[32 * b + c] = number<T>(codes, scales, c);
    }
  });
}

// --- rms_norm ---

__global__ void __launch_bounds__(kThreads)
    rms_norm(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in, const float* weight,
             float epsilon, Rows<float> out) {
  __shared__ float partial[33];
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  const float* x = in(blockIdx.x, blockIdx.y);
  float* y = out(blockIdx.x, blockIdx.y);
  float squares = 0;
  for (int c = threadIdx.x; c < in.columns; c += kThreads) {
    const float v = __ldcg(x + c);
    squares += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(in.columns) + epsilon);
  for (int c = threadIdx.x; c < in.columns; c += kThreads) y[c] = __ldcg(x + c) * inverse * __ldg(weight + c);
}

/// out = the normed row times silu or sigmoid of the gate. A warp has a head's row: all warps of the block
/// have heads of one row.
__global__ void __launch_bounds__(kThreads)
    gated_norm(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in,
               const float* weight, Rows<float> gate, float epsilon, bool sigmoid, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  const int head = static_cast<int>(blockIdx.y * (kThreads / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (head >= in.heads) return;
  const float *x = in(blockIdx.x, head), *g = gate(blockIdx.x, head);
  float squares = 0;
  for (int c = lane; c < in.columns; c += 32) {
    const float v = __ldcg(x + c);
    squares += v * v;
  }
  const float inverse = 1.0f / sqrtf(lane_sum(squares) / static_cast<float>(in.columns) + epsilon);
  for (int c = lane; c < in.columns; c += 32) {
    const float by = __ldcg(g + c), open = 1.0f / (1.0f + expf(-by));
    out(blockIdx.x, head)[c] = __ldcg(x + c) * inverse * __ldg(weight + c) * (sigmoid ? open : by * open);
  }
}

// --- rope ---

__global__ void __launch_bounds__(kThreads)
    rope(const Timestamps timestamps, StepView step, const __grid_constant__ RopeTable table,
         const float* factors, int passed, Rows<float> in, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step)) return;
  const int position = __ldcg(step.positions + blockIdx.x), half = (in.columns - passed) / 2;
  for (int at = threadIdx.x; at < in.heads * half; at += kThreads) {
    const int head = at / half, i = at % half;
    const float* x = in(blockIdx.x, head);
    float* y = out(blockIdx.x, head);
    const SinCos sin_cos = table.sin_cos(position, i, factors);
    const int first = table.first(i), second = table.second(i, half);
    const float a = __ldcg(x + first), b = __ldcg(x + second);
    y[first] = a * sin_cos.cosine - b * sin_cos.sine;
    y[second] = a * sin_cos.sine + b * sin_cos.cosine;
  }
  for (int at = threadIdx.x; at < in.heads * passed; at += kThreads) {
    const int head = at / passed, c = 2 * half + at % passed;
    out(blockIdx.x, head)[c] = __ldcg(in(blockIdx.x, head) + c);
  }
}

// --- kv_append ---

__global__ void __launch_bounds__(kThreads)
    kv_append(const Timestamps timestamps, StepView step, Rows<float> latent, Rows<float> key, Cache cache,
              int layer) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step)) return;
  const int64_t slot = __ldcg(step.slots + blockIdx.x);
  if (slot < 0) return;
  char* const to = cache.row(layer, slot);
  for (int c = threadIdx.x; c < cache.columns; c += kThreads) {
    const float v =
        c < latent.columns ? __ldcg(latent(blockIdx.x) + c) : __ldcg(key(blockIdx.x) + c - latent.columns);
    put_number(cache, to, c, v);
  }
}

// --- elementwise ---

enum class Pairwise { SiluMul, Swiglu, Add };

/// form: of Swiglu.
template <Pairwise kWhat>
__global__ void __launch_bounds__(kThreads)
    pairwise(const Timestamps timestamps, StepView step, bool by_outputs, Swiglu form, Rows<float> a,
             Rows<float> b, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int head = at / out.columns, c = at % out.columns;
    float x = __ldcg(a(blockIdx.x, head) + c), y = __ldcg(b(blockIdx.x, head) + c);
    if constexpr (kWhat == Pairwise::Swiglu) {  // comparisons leave a NaN what it is
      x = x > form.limit ? form.limit : x;
      y = y > form.limit ? form.limit : y < -form.limit ? -form.limit : y;
      out(blockIdx.x, head)[c] = x / (1.0f + expf(-form.alpha * x)) * (y + form.shift);
    } else {
      out(blockIdx.x, head)[c] = kWhat == Pairwise::Add ? x + y : x / (1.0f + expf(-x)) * y;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sigmoid_mul(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in, Rows<float> gate,
                Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  const bool one = gate.heads == 1 && gate.columns == 1;
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int head = at / out.columns, c = at % out.columns;
    const float by = one ? __ldcg(gate(blockIdx.x)) : __ldcg(gate(blockIdx.x, head) + c);
    out(blockIdx.x, head)[c] = __ldcg(in(blockIdx.x, head) + c) / (1.0f + expf(-by));
  }
}

__global__ void __launch_bounds__(kThreads)
    add_bias(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in, const float* bias,
             Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int head = at / out.columns, c = at % out.columns;
    out(blockIdx.x, head)[c] = __ldcg(in(blockIdx.x, head) + c) + __ldg(bias + at);
  }
}

__global__ void __launch_bounds__(kThreads)
    expert_bias(const Timestamps timestamps, StepView step, Rows<float> in, Matrix bias, Rows<int32_t> ids,
                Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step)) return;
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int k = at / out.columns, c = at % out.columns;
    const int64_t expert = __ldcg(ids(blockIdx.x) + k);
    out(blockIdx.x, k)[c] = __ldcg(in(blockIdx.x, k) + c) +
                            float_number(bias.type, bias.codes, bias.row(0, expert) * bias.columns + c);
  }
}

/// ids null: of one matrix; each: numbers of an expert.
__global__ void __launch_bounds__(kThreads)
    scale(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in, const float* scales,
          Rows<int32_t> ids, int each, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int head = at / out.columns, c = at % out.columns;
    const int matrix = ids.data != nullptr ? __ldcg(ids(blockIdx.x) + at / each) : 0;
    out(blockIdx.x, head)[c] = __ldcg(in(blockIdx.x, head) + c) * __ldg(scales + matrix);
  }
}

__global__ void __launch_bounds__(kThreads)
    attention_temperature(const Timestamps timestamps, StepView step, double beta, double length,
                          Rows<float> in, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step)) return;
  const int position = __ldcg(step.positions + blockIdx.x);
  const auto by = static_cast<float>(1 + beta * log(1 + floor(position / length)));
  for (int at = threadIdx.x; at < out.heads * out.columns; at += kThreads) {
    const int head = at / out.columns, c = at % out.columns;
    out(blockIdx.x, head)[c] = __ldcg(in(blockIdx.x, head) + c) * by;
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_rows(const Timestamps timestamps, StepView step, Rows<float> in, Rows<float> out) {
  const PdlLink pdl(timestamps);
  // The step's data was there before the first kernel began.
  const bool there = is_row(step, true);
  const int row = there ? __ldg(step.output_rows + blockIdx.x) : 0;
  pdl.wait();
  if (!there) return;
  const float* from = in(row);
  for (int c = threadIdx.x; c < in.columns; c += kThreads) out(blockIdx.x)[c] = __ldcg(from + c);
}

__global__ void __launch_bounds__(kThreads)
    expert_combine(const Timestamps timestamps, StepView step, bool by_outputs, Rows<float> in,
                   Rows<float> weights, Rows<float> out) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (!is_row(step, by_outputs)) return;
  for (int c = threadIdx.x; c < out.columns; c += kThreads) {
    float sum = 0;
    for (int k = 0; k < in.heads; ++k) sum += __ldcg(weights(blockIdx.x) + k) * __ldcg(in(blockIdx.x, k) + c);
    out(blockIdx.x)[c] = sum;
  }
}

// --- launchers ---

/// One thread block a row of `tensor`.
LaunchShape by_row(const Program& program, const Context& context, TensorId tensor, int64_t heads = 1) {
  return {dim3(static_cast<unsigned>(context.rows(program[tensor])), static_cast<unsigned>(heads)),
          dim3(kThreads)};
}
bool by_outputs(const Program& program, TensorId tensor) { return program[tensor].shape[0] == kOutputRows; }

void launch_embed(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<Embed>(record.args);
  launch(c, embed, by_row(program, c, op.out.id), c.step, c.memory.matrix(op.table.id), c.drawn,
         c.memory.rows(op.out.id));
}
void launch_rms_norm(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<RmsNorm>(record.args);
  launch(c, rms_norm, by_row(program, c, op.in.id, program[op.in.id].heads()), c.step,
         by_outputs(program, op.in.id), c.memory.rows(op.in.id), c.memory.vector(op.weight.id), op.epsilon,
         c.memory.rows(op.out.id));
}
void launch_rope(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<Rope>(record.args);
  launch(c, rope, by_row(program, c, op.in.id), c.step, rope_table(op.params, op.rope_columns(program)),
         c.memory.vector(op.factors.id), op.passed, c.memory.rows(op.in.id), c.memory.rows(op.out.id));
}
void launch_kv_append(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<KvAppend>(record.args);
  launch(c, kv_append, by_row(program, c, op.latent.id), c.step, c.memory.rows(op.latent.id),
         c.memory.rows(op.rope_key.id), c.memory.cache(op.cache.id), op.cache_layer);
}
void launch_silu_mul(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<SiluMul>(record.args);
  const auto kernel = op.form.is_plain() ? pairwise<Pairwise::SiluMul> : pairwise<Pairwise::Swiglu>;
  launch(c, kernel, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id), op.form,
         c.memory.rows(op.gate.id), c.memory.rows(op.up.id), c.memory.rows(op.out.id));
}
void launch_sigmoid_mul(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<SigmoidMul>(record.args);
  launch(c, sigmoid_mul, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id),
         c.memory.rows(op.in.id), c.memory.rows(op.gate.id), c.memory.rows(op.out.id));
}
void launch_gated_norm(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<GatedNorm>(record.args);
  constexpr int64_t kWarps = kThreads / 32;
  launch(c, gated_norm, by_row(program, c, op.in.id, (program[op.in.id].heads() + kWarps - 1) / kWarps),
         c.step, by_outputs(program, op.in.id), c.memory.rows(op.in.id), c.memory.vector(op.weight.id),
         c.memory.rows(op.gate.id), op.epsilon, op.form == GateForm::Sigmoid, c.memory.rows(op.out.id));
}
void launch_add(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<Add>(record.args);
  launch(c, pairwise<Pairwise::Add>, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id),
         Swiglu{}, c.memory.rows(op.a.id), c.memory.rows(op.b.id), c.memory.rows(op.out.id));
}
void launch_add_bias(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<AddBias>(record.args);
  launch(c, add_bias, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id),
         c.memory.rows(op.in.id), c.memory.vector(op.bias.id), c.memory.rows(op.out.id));
}
void launch_expert_bias(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertBias>(record.args);
  launch(c, expert_bias, by_row(program, c, op.out.id), c.step, c.memory.rows(op.in.id),
         c.memory.matrix(op.bias.id), c.memory.int_rows(op.ids.id), c.memory.rows(op.out.id));
}
void launch_scale(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<Scale>(record.args);
  launch(c, scale, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id),
         c.memory.rows(op.in.id), c.memory.vector(op.scale.id),
         op.ids ? c.memory.int_rows(op.ids.id) : Rows<int32_t>{}, static_cast<int>(op.each(program)),
         c.memory.rows(op.out.id));
}
void launch_attention_temperature(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<AttentionTemperature>(record.args);
  launch(c, attention_temperature, by_row(program, c, op.out.id), c.step, op.beta, op.length,
         c.memory.rows(op.in.id), c.memory.rows(op.out.id));
}
void launch_gather_rows(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<GatherRows>(record.args);
  launch(c, gather_rows, by_row(program, c, op.out.id), c.step, c.memory.rows(op.in.id),
         c.memory.rows(op.out.id));
}
void launch_expert_combine(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertCombine>(record.args);
  launch(c, expert_combine, by_row(program, c, op.out.id), c.step, by_outputs(program, op.out.id),
         c.memory.rows(op.in.id), c.memory.rows(op.weights.id), c.memory.rows(op.out.id));
}

bool serves_expert_bias(const Program& program, const Op& record, const Sizes&) {
  return quant::type_info(program[std::get<ExpertBias>(record.args).bias.id].type).block == 1;
}
bool serves_rope(const Program& program, const Op& record, const Sizes&) {
  return std::get<Rope>(record.args).rope_columns(program) <= 2 * RopeTable::kMostPairs;
}

}  // namespace

const Kernel kEmbed{"embed", serves_all, launch_embed};
const Kernel kRmsNorm{"rms_norm", serves_all, launch_rms_norm};
const Kernel kRope{"rope", serves_rope, launch_rope};
const Kernel kKvAppend{"kv_append", serves_all, launch_kv_append};
const Kernel kSiluMul{"silu_mul", serves_all, launch_silu_mul};
const Kernel kSigmoidMul{"sigmoid_mul", serves_all, launch_sigmoid_mul};
const Kernel kGatedNorm{"gated_norm", serves_all, launch_gated_norm};
const Kernel kAdd{"add", serves_all, launch_add};
const Kernel kAddBias{"add_bias", serves_all, launch_add_bias};
const Kernel kExpertBias{"expert_bias", serves_expert_bias, launch_expert_bias};
const Kernel kScale{"scale", serves_all, launch_scale};
const Kernel kAttentionTemperature{"attention_temperature", serves_all, launch_attention_temperature};
const Kernel kGatherRows{"gather_rows", serves_all, launch_gather_rows};
const Kernel kExpertCombine{"expert_combine", serves_all, launch_expert_combine};

}  // namespace sluice::backend::cuda
