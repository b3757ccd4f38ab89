// Kernels that touch each number once: embed, rms_norm, rope, attention_temperature, silu_mul, sigmoid_mul,
// add, gather_rows, kv_append. They take microseconds at batch 1; rows are shared among the workers.
#include <algorithm>

#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/ops/rotation.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void embed(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<Embed>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id);
  const Slice rows = c.row_slice(c.input.rows());
  for (int64_t r = rows.first; r < rows.last; ++r) {
    c.memory.decode_row(op.table.id, c.input.tokens[static_cast<size_t>(r)], out(r));
  }
}

void rms_norm(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<RmsNorm>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  float* weight = c.scratch();
  const Slice rows = c.row_slice(c.rows(p, op.in.id));
  if (rows.first < rows.last) c.memory.weight(op.weight.id).decode_row(0, 0, weight);
  const auto norm = [&](int64_t r, int64_t h, float* to) {
    small_kernels(c.isa).rms_norm(in(r, h), weight, in.columns, op.epsilon, to);
  };
  if (uint16_t* rounded = c.rounded(p, op.out.id)) {
    float* group = weight + in.columns;
    for (int64_t r = rows.first; r < rows.last; r += kGroupRows) {
      const int64_t count = std::min<int64_t>(kGroupRows, rows.last - r);
      const float* normed[kGroupRows];
      for (int64_t i = 0; i < count; ++i) {
        norm(r + i, 0, group + i * in.columns);
        normed[i] = group + i * in.columns;
      }
      tile_kernels(c.isa)->round(normed, static_cast<int>(count), in.columns, rounded + r * in.columns);
    }
    return;
  }
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t h = 0; h < in.heads; ++h) norm(r, h, out(r, h));
  }
}

int64_t rms_norm_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<RmsNorm>(record.args).in.id].columns() * (1 + kGroupRows);
}

void rope(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Rope>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rotation rotation(p, op, c);
  const int64_t rotated = op.rope_columns(p);
  float* angles = c.scratch();
  const Slice rows = c.row_slice(c.input.rows());
  for (int64_t r = rows.first; r < rows.last; ++r) {
    rotation.angles(c.input.positions[static_cast<size_t>(r)], angles);
    for (int64_t h = 0; h < in.heads; ++h) {
      rotation.rotate(in(r, h), angles, out(r, h));
      std::copy_n(in(r, h) + rotated, op.passed, out(r, h) + rotated);
    }
  }
}

int64_t rope_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<Rope>(record.args).in.id].columns();
}

void attention_temperature(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<AttentionTemperature>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Slice rows = c.row_slice(c.input.rows());
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const float by = op.factor(c.input.positions[static_cast<size_t>(r)]);
    for (int64_t h = 0; h < in.heads; ++h) {
      for (int64_t i = 0; i < in.columns; ++i) out(r, h)[i] = in(r, h)[i] * by;
    }
  }
}

void silu_mul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<SiluMul>(record.args);
  const Rows<float> gate = c.memory.rows(op.gate.id), up = c.memory.rows(op.up.id),
                    out = c.memory.rows(op.out.id);
  const int64_t whole = gate.columns / kPanelRows * kPanelRows, rest = gate.columns - whole;
  const Gated gated = Gated::of(op.form, c.isa);
  const Slice rows = c.row_slice(c.rows(p, op.gate.id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t h = 0; h < gate.heads; ++h) {
      gated.activate(c.memory.kernels(), whole, gate(r, h), up(r, h), out(r, h));
      if (rest == 0) continue;
      float gates[kPanelRows] = {}, ups[kPanelRows] = {};
      std::copy_n(gate(r, h) + whole, rest, gates);
      std::copy_n(up(r, h) + whole, rest, ups);
      gated.activate(c.memory.kernels(), kPanelRows, gates, ups, gates);
      std::copy_n(gates, rest, out(r, h) + whole);
    }
  }
}

void sigmoid_mul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<SigmoidMul>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), gate = c.memory.rows(op.gate.id),
                    out = c.memory.rows(op.out.id);
  const bool one = gate.heads == 1 && gate.columns == 1;
  float* by = c.scratch();
  const Slice rows = c.row_slice(c.rows(p, op.in.id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    if (one) small_kernels(c.isa).sigmoid(gate(r), 1, by);
    for (int64_t h = 0; h < in.heads; ++h) {
      if (!one) small_kernels(c.isa).sigmoid(gate(r, h), in.columns, by);
      for (int64_t i = 0; i < in.columns; ++i) out(r, h)[i] = in(r, h)[i] * by[one ? 0 : i];
    }
  }
}

int64_t sigmoid_mul_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<SigmoidMul>(record.args).in.id].columns();
}

void add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Add>(record.args);
  const Rows<float> a = c.memory.rows(op.a.id), b = c.memory.rows(op.b.id), out = c.memory.rows(op.out.id);
  const Slice rows = c.row_slice(c.rows(p, op.a.id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.columns; ++i) out(r, h)[i] = a(r, h)[i] + b(r, h)[i];
    }
  }
}

void gather_rows(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<GatherRows>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Slice rows = c.slice(c.input.outputs());
  for (int64_t i = rows.first; i < rows.last; ++i) {
    std::copy_n(in(c.input.output_rows[static_cast<size_t>(i)]), in.columns, out(i));
  }
}

void kv_append(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<KvAppend>(record.args);
  const Rows<float> latent = c.memory.rows(op.latent.id), key = c.memory.rows(op.rope_key.id);
  const Cache cache = c.memory.cache(op.cache.id);
  float* row = c.scratch();
  const Slice rows = c.row_slice(c.input.rows());
  for (int64_t r = rows.first; r < rows.last; ++r) {
    std::copy_n(latent(r), latent.columns, row);
    std::copy_n(key(r), key.columns, row + latent.columns);
    std::byte* slot = cache.row(op.cache_layer, c.input.slots[static_cast<size_t>(r)]);
    if (cache.format.type == quant::Type::F16) {
      small_kernels(c.isa).to_f16(row, cache.format.columns, reinterpret_cast<uint16_t*>(slot));
    } else {
      cache.format.encode(row, slot);
    }
  }
}

int64_t kv_append_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<KvAppend>(record.args).cache.id].columns();
}

}  // namespace

const Kernel kEmbed{"embed decode_row", Share::Rows, embed, no_scratch};
const Kernel kRmsNorm{"rms_norm", Share::Rows, rms_norm, rms_norm_scratch};
const Kernel kRope{"rope", Share::Rows, rope, rope_scratch};
const Kernel kAttentionTemperature{"attention_temperature", Share::Rows, attention_temperature, no_scratch};
const Kernel kSiluMul{"silu_mul", Share::Rows, silu_mul, no_scratch};
const Kernel kSigmoidMul{"sigmoid_mul", Share::Rows, sigmoid_mul, sigmoid_mul_scratch};
const Kernel kAdd{"add", Share::Rows, add, no_scratch};
const Kernel kGatherRows{"gather_rows", Share::Other, gather_rows, no_scratch};
const Kernel kKvAppend{"kv_append", Share::Rows, kv_append, kv_append_scratch};

}  // namespace sluice::backend::cpu
