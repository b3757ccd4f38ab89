#include "program/builder.h"

#include <fmt/format.h>

#include "base/check.h"

namespace sluice::program {

TensorId Builder::add(Tensor tensor) {
  tensor.place = place_;
  return program_.add(std::move(tensor));
}

TensorId Builder::weight(std::string name, quant::Type type, int64_t matrices, int64_t rows,
                         int64_t columns) {
  return add(
      Tensor{std::move(name), Kind::Weight, type, {matrices, rows, columns}, {rows * columns, columns}});
}

TensorId Builder::weight_view(TensorId base, std::string name, int64_t matrices, int64_t rows,
                              int64_t first_row, int64_t matrix_stride) {
  const Tensor& whole = program_[base];
  CHECK(whole.kind == Kind::Weight && whole.base == kNoTensor);
  CHECK((matrices - 1) * matrix_stride + first_row + rows <= whole.shape[0] * whole.shape[1], "{}", name);
  const int64_t columns = whole.columns();
  return add(Tensor{std::move(name),
                    Kind::Weight,
                    whole.type,
                    {matrices, rows, columns},
                    {matrix_stride * columns, columns},
                    base,
                    first_row * columns});
}

TensorId Builder::weight_part(TensorId of, Range matrices, Range rows, Range columns) {
  Tensor part = program_[of];
  CHECK(part.kind == Kind::Weight, "{}", part.name);
  const Range parts[] = {matrices, rows, columns};
  for (size_t i = 0; i < 3; ++i)
    CHECK(0 <= parts[i].first && parts[i].first < parts[i].last && parts[i].last <= part.shape[i],
          "{}: [{}, {}) of {}", part.name, parts[i].first, parts[i].last, part.shape[i]);
  part.base = program_.storage(of);
  part.offset += matrices.first * part.stride[0] + rows.first * part.stride[1] + columns.first;
  part.shape = {matrices.count(), rows.count(), columns.count()};
  return add(std::move(part));
}

TensorId Builder::activation(std::string name, int64_t rows, int64_t heads, int64_t columns, quant::Type type,
                             int64_t most_rows) {
  Tensor tensor{std::move(name), Kind::Activation, type, {rows, heads, columns}, {heads * columns, columns}};
  tensor.most_rows = most_rows;
  return add(std::move(tensor));
}

TensorId Builder::columns(TensorId base, std::string name, int64_t first, int64_t count) {
  const Tensor whole = program_[base];
  CHECK(whole.kind == Kind::Activation && first >= 0 && first + count <= whole.columns(), "{}", name);
  return add(Tensor{std::move(name),
                    Kind::Activation,
                    whole.type,
                    {whole.shape[0], whole.heads(), count},
                    whole.stride,
                    program_.storage(base),
                    whole.offset + first});
}

TensorId Builder::heads(TensorId base, std::string name, int64_t first, int64_t heads, int64_t columns) {
  const Tensor whole = program_[base];
  CHECK(whole.kind == Kind::Activation && whole.heads() == 1 && first >= 0 &&
            first + heads * columns <= whole.columns(),
        "{}", name);
  return add(Tensor{std::move(name),
                    Kind::Activation,
                    whole.type,
                    {whole.shape[0], heads, columns},
                    {whole.stride[0], columns},
                    program_.storage(base),
                    whole.offset + first});
}

TensorId Builder::flatten(TensorId base) {
  const Tensor whole = program_[base];
  const int64_t columns = whole.heads() * whole.columns();
  CHECK(whole.kind == Kind::Activation && (whole.heads() == 1 || whole.stride[1] == whole.columns()), "{}",
        whole.name);
  return add(Tensor{whole.name,
                    Kind::Activation,
                    whole.type,
                    {whole.shape[0], 1, columns},
                    {whole.stride[0], columns},
                    program_.storage(base),
                    whole.offset});
}

TensorId Builder::cache(int64_t layers, int64_t columns, quant::Type type, int64_t exact, std::string name) {
  Tensor tensor{
      std::move(name), Kind::Cache, type, {layers, kPageRows, columns}, {kPageRows * columns, columns}};
  tensor.exact = exact;
  return add(std::move(tensor));
}

TensorId Builder::state(std::string name, int64_t layers, int64_t rows, int64_t columns) {
  return add(Tensor{
      std::move(name), Kind::State, quant::Type::F32, {layers, rows, columns}, {rows * columns, columns}});
}

TensorId Builder::like(const char* name, TensorId shape_of, int64_t heads, int64_t columns) {
  return activation(name, program_[shape_of].shape[0], heads, columns);
}

TensorId Builder::embed(TensorId table) {
  const TensorId out = activation("embedding", kStepRows, 1, program_[table].columns());
  emit(Embed{{table}, {out}});
  return out;
}

TensorId Builder::rms_norm(TensorId in, TensorId weight, float epsilon) {
  const TensorId out = like("normed", in, program_[in].heads(), program_[in].columns());
  emit(RmsNorm{{in}, {weight}, {out}, epsilon});
  return out;
}

TensorId Builder::matmul(TensorId in, TensorId weight, int64_t heads) {
  const int64_t outputs = program_[weight].shape[1];
  CHECK(outputs % heads == 0);
  const TensorId out = like("product", in, heads, outputs / heads);
  emit(Matmul{{in}, {weight}, {out}});
  return out;
}

TensorId Builder::norm_matmul(TensorId in, TensorId norm, float epsilon, TensorId weight) {
  const TensorId out = like("product", in, 1, program_[weight].shape[1]);
  emit(NormMatmul{.in = {in}, .norm = {norm}, .a = {weight}, .out_a = {out}, .epsilon = epsilon});
  return out;
}

TensorId Builder::matmul_add(TensorId in, TensorId weight, TensorId residual, TensorId bias) {
  const TensorId out = like(residual != kNoTensor ? "residual" : "partial", in, 1, program_[weight].shape[1]);
  emit(MatmulAdd{{in}, {weight}, {residual}, {bias}, {out}});
  return out;
}

void Builder::head_matmul(TensorId in, TensorId weight, Reduce reduce, TensorId out) {
  emit(HeadMatmul{{in}, {weight}, {out}, reduce});
}

TensorId Builder::add_bias(TensorId in, TensorId bias) {
  const TensorId out = like("biased", in, program_[in].heads(), program_[in].columns());
  emit(AddBias{{in}, {bias}, {out}});
  return out;
}

TensorId Builder::add(TensorId a, TensorId b) {
  const TensorId out = like("residual", a, program_[a].heads(), program_[a].columns());
  emit(Add{{a}, {b}, {out}});
  return out;
}

TensorId Builder::scale(TensorId in, TensorId scale, TensorId ids) {
  const TensorId out = like("scaled", in, program_[in].heads(), program_[in].columns());
  emit(Scale{{in}, {scale}, {ids}, {out}});
  return out;
}

void Builder::rope(TensorId in, const RopeParams& params, TensorId out, TensorId factors, int64_t passed) {
  emit(Rope{{in}, {out}, params, {factors}, passed});
}

TensorId Builder::attention_temperature(TensorId in, double beta, double length) {
  const TensorId out = like("tempered", in, program_[in].heads(), program_[in].columns());
  emit(AttentionTemperature{{in}, {out}, beta, length});
  return out;
}

void Builder::kv_append(TensorId latent, TensorId rope_key, TensorId cache, int32_t cache_layer) {
  emit(KvAppend{{latent}, {rope_key}, {cache}, cache_layer});
}

TensorId Builder::mla_attend(TensorId q, TensorId cache, int64_t rank, float scale, int32_t cache_layer) {
  const TensorId out = like("context", q, program_[q].heads(), rank);
  emit(MlaAttend{{q}, {cache}, {out}, scale, cache_layer});
  return out;
}

TensorId Builder::attend(TensorId q, TensorId cache, int64_t kv_heads, int64_t value_columns, float scale,
                         int32_t cache_layer, int64_t window, TensorId sinks) {
  const TensorId out = like("context", q, program_[q].heads(), value_columns);
  emit(Attend{{q}, {cache}, {sinks}, {out}, kv_heads, scale, cache_layer, window});
  return out;
}

TensorId Builder::gqa_attend(GqaAttend op, int64_t value_columns) {
  const TensorId q = op.query.q.id;
  op.out.id = like("context", q, program_[q].heads(), value_columns);
  emit(op);
  return op.out.id;
}

TensorId Builder::causal_conv(TensorId in, TensorId weight, TensorId state, int32_t cache_layer, bool silu) {
  const TensorId out = like("convolved", in, 1, program_[in].columns());
  emit(CausalConv{{in}, {weight}, {state}, {out}, cache_layer, silu});
  return out;
}

TensorId Builder::delta_rule(DeltaRule op) {
  op.out.id = like("attended", op.v.id, program_[op.v.id].heads(), program_[op.v.id].columns());
  emit(op);
  return op.out.id;
}

TensorId Builder::gated_norm(TensorId in, TensorId weight, TensorId gate, float epsilon, GateForm form) {
  const TensorId out = like("gated_norm", in, program_[in].heads(), program_[in].columns());
  emit(GatedNorm{{in}, {weight}, {gate}, {out}, epsilon, form});
  return out;
}

TensorId Builder::sigmoid_mul(TensorId in, TensorId gate) {
  const TensorId out = like("gated", in, program_[in].heads(), program_[in].columns());
  emit(SigmoidMul{{in}, {gate}, {out}});
  return out;
}

void Builder::route(Route& route, int64_t used) {
  route.ids.id = activation("expert_ids", program_[route.logits.id].shape[0], 1, used, quant::Type::I32);
  route.weights.id = like("expert_weights", route.logits.id, 1, used);
  emit(route);
}

TensorId Builder::silu_mul(TensorId gate, TensorId up, const Swiglu& form) {
  const TensorId out = like("gated", gate, program_[gate].heads(), program_[gate].columns());
  emit(SiluMul{{gate}, {up}, {out}, form});
  return out;
}

TensorId Builder::gather_rows(TensorId in) {
  const TensorId out = activation("output_rows", kOutputRows, 1, program_[in].columns());
  emit(GatherRows{{in}, {out}});
  return out;
}

TensorId Builder::gate_up(TensorId in, TensorId gate, TensorId up) {
  const TensorId out = like("gated", in, 1, program_[gate].shape[1]);
  emit(GateUp{{in}, {gate}, {up}, {out}});
  return out;
}

TensorId Builder::norm_gate_up(TensorId in, TensorId norm, float epsilon, TensorId gate, TensorId up) {
  const TensorId out = like("gated", in, 1, program_[gate].shape[1]);
  emit(NormGateUp{{in}, {norm}, {{}, {gate}, {up}, {out}}, epsilon});
  return out;
}

void Builder::moe_gate_up(MoeGateUp& op) {
  op.out.id = like("gated", op.in.id, program_[op.ids.id].columns(), program_[op.gate.id].shape[1]);
  if (op.shared_gate)
    op.shared_out.id = like("shared_gated", op.in.id, 1, program_[op.shared_gate.id].shape[1]);
  emit(op);
}

void Builder::norm_moe_gate_up(NormMoeGateUp& op, int64_t used) {
  const TensorId in = op.route.in.id;
  Route& route = op.route.route;
  route.ids.id = activation("expert_ids", program_[in].shape[0], 1, used, quant::Type::I32);
  route.weights.id = like("expert_weights", in, 1, used);
  MoeGateUp& experts = op.experts;
  experts.out.id = like("gated", in, used, program_[experts.gate.id].shape[1]);
  if (experts.shared_gate)
    experts.shared_out.id = like("shared_gated", in, 1, program_[experts.shared_gate.id].shape[1]);
  emit(op);
}

TensorId Builder::moe_down_add(MoeDownAdd op) {
  op.out.id = like(op.residual ? "residual" : "partial", op.ids.id, 1, program_[op.down.id].shape[1]);
  emit(op);
  return op.out.id;
}

}  // namespace sluice::program
