// The ops that move and turn activations: little work each.
#include <algorithm>

#include "backend/vulkan/emit.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

/// As elementwise.comp numbers them.
enum class Elementwise : uint32_t {
  Add,
  SiluMul,
  AddBias,
  ExpertBias,
  ExpertCombine,
  Temperature,
  GatherRows,
  SigmoidMul,
  Scale
};

/// Which of its parameters is the second operand's stride from head to head.
constexpr size_t kHeadOfB = 5;

struct ElementwiseOf {
  Elementwise op;
  TensorId a, b, out;
  uint32_t count = 0;  ///< what the op makes of it
  Swiglu form = {};
  BoundWeight weight = {};
};

void emit_elementwise(Emit& emit, const ElementwiseOf& op) {
  const Place a = emit.place(op.a), b = op.b != kNoTensor ? emit.place(op.b) : Place{},
              out = emit.place(op.out);
  const uint32_t columns = emit.columns(op.out);
  Dispatch dispatch{.shader = Shader::elementwise, .constants = {static_cast<uint32_t>(op.op)}};
  dispatch.params = {a.at,
                     a.row,
                     a.head,
                     b.at,
                     b.row,
                     b.head,
                     out.at,
                     out.row,
                     out.head,
                     columns,
                     op.count,
                     emit.rows_word(op.out),
                     bits(op.form.alpha),
                     bits(std::min(op.form.limit, 3.4e38F)),
                     bits(op.form.shift)};
  dispatch.groups = {groups(columns, 128), emit.heads(op.out), static_cast<uint32_t>(emit.rows(op.out))};
  dispatch.weights[0] = op.weight;
  emit.add(std::move(dispatch));
}

}  // namespace

void emit(Emit& emit, const SiluMul& op) {
  emit_elementwise(emit, {Elementwise::SiluMul, op.gate.id, op.up.id, op.out.id, 0, op.form});
}
void emit(Emit& emit, const Add& op) {
  emit_elementwise(emit, {Elementwise::Add, op.a.id, op.b.id, op.out.id});
}
void emit(Emit& emit, const AddBias& op) {
  emit_elementwise(emit,
                   {Elementwise::AddBias, op.in.id, kNoTensor, op.out.id, 0, {}, emit.vector(op.bias.id)});
}
void emit(Emit& emit, const ExpertBias& op) {
  const auto stride = static_cast<uint32_t>(emit[op.bias.id].stride[1]);
  emit_elementwise(
      emit, {Elementwise::ExpertBias, op.in.id, op.ids.id, op.out.id, stride, {}, emit.weight(op.bias.id)});
}
void emit_combine(Emit& emit, const Operand& experts, const Operand& weights, const Operand* onto,
                  const Operand& out) {
  Dispatch dispatch{.shader = Shader::elementwise};
  dispatch.constants = {static_cast<uint32_t>(Elementwise::ExpertCombine), onto != nullptr};
  const Place &a = experts.place, &b = weights.place, &to = out.place;
  const Place added = onto != nullptr ? onto->place : Place{};
  dispatch.params = {a.at,  a.row,  a.head,  b.at,        b.row,         b.head,
                     to.at, to.row, to.head, out.columns, experts.heads, out.rows_word,
                     0,     0,      0,       added.at,    added.row};
  dispatch.groups = {groups(out.columns, 128), out.heads, static_cast<uint32_t>(out.rows)};
  emit.add(std::move(dispatch));
}
void emit(Emit& emit, const ExpertCombine& op) {
  emit_combine(emit, emit.operand(op.in.id), emit.operand(op.weights.id), nullptr, emit.operand(op.out.id));
}
void emit(Emit& emit, const AttentionTemperature& op) {
  emit_elementwise(
      emit, {Elementwise::Temperature, op.in.id, kNoTensor, op.out.id, emit.layout.step.temperature_at(op)});
}
void emit(Emit& emit, const GatherRows& op) {
  emit_elementwise(emit,
                   {Elementwise::GatherRows, op.in.id, kNoTensor, op.out.id, emit.layout.step.output_rows});
}

/// A gate of one number a row is for all of it.
void emit(Emit& emit, const SigmoidMul& op) {
  const bool one = emit.columns(op.gate.id) == 1 && emit.heads(op.gate.id) == 1;
  emit_elementwise(emit, {Elementwise::SigmoidMul, op.in.id, op.gate.id, op.out.id, one ? 0U : 1U});
  if (one) emit.list.back().params[kHeadOfB] = 0;
}

/// A matrix of its own for a part of the row, or the only one: the count is 0.
void emit(Emit& emit, const Scale& op) {
  const auto each = op.ids ? static_cast<uint32_t>(op.each(emit.layout.program)) : 0U;
  emit_elementwise(emit,
                   {Elementwise::Scale, op.in.id, op.ids.id, op.out.id, each, {}, emit.vector(op.scale.id)});
}

uint32_t emit_top(Emit& emit, const Operand& logits) {
  constexpr int64_t kSorted = 1024;  ///< by a workgroup
  Place from = logits.place;
  int64_t count = logits.columns;
  for (bool pairs = false;; pairs = true) {
    const uint32_t parts = groups(count, kSorted);
    const auto out_row = static_cast<uint32_t>(parts * 2 * kTop);
    const uint32_t at = emit.scratch_at(logits.rows * out_row);
    Dispatch dispatch{.shader = Shader::top_k, .constants = {pairs}};
    dispatch.params = {from.at, from.row, static_cast<uint32_t>(count), at, out_row, logits.rows_word};
    dispatch.groups = {parts, static_cast<uint32_t>(logits.rows), 1};
    emit.wait();
    emit.add(std::move(dispatch));
    if (parts == 1) return at;
    from = {at, out_row, 0};
    count = parts * kTop;
  }
}

void emit_norm(Emit& emit, const Operand& in, TensorId weight, float epsilon, const Operand& out) {
  Dispatch dispatch{.shader = Shader::rms_norm};
  dispatch.params = {in.place.at,    in.place.row, in.place.head, out.place.at, out.place.row,
                     out.place.head, in.columns,   out.rows_word, bits(epsilon)};
  dispatch.groups = {in.heads, static_cast<uint32_t>(out.rows), 1};
  dispatch.weights[0] = emit.vector(weight);
  emit.add(std::move(dispatch));
}
void emit(Emit& emit, const RmsNorm& op) {
  emit_norm(emit, emit.operand(op.in.id), op.weight.id, op.epsilon, emit.operand(op.out.id));
}

void emit_rope(Emit& emit, const Operand& in, const RopeParams& params, TensorId factors, int64_t passed,
               const Operand& out) {
  const auto behind = static_cast<uint32_t>(passed);
  const uint32_t pairs = (in.columns - behind) / 2;
  const Place &from = in.place, &to = out.place;
  Dispatch dispatch{.shader = Shader::rope, .constants = {params.pairs == RopePairs::Halves}};
  dispatch.params = {
      from.at, from.row, from.head, to.at,  to.row,
      to.head, in.heads, pairs,     behind, emit.layout.step.angles_at(params, pairs, factors)};
  dispatch.groups = {groups(int64_t{in.heads} * (pairs + behind), 64), static_cast<uint32_t>(emit.sizes.rows),
                     1};
  emit.add(std::move(dispatch));
}
void emit(Emit& emit, const Rope& op) {
  emit_rope(emit, emit.operand(op.in.id), op.params, op.factors.id, op.passed, emit.operand(op.out.id));
}

void emit_route(Emit& emit, const Route& op, const Operand& logits, const Operand& ids,
                const Operand& weights) {
  Dispatch dispatch{.shader = Shader::route};
  dispatch.constants = {logits.columns, op.gating == Gating::Sigmoid, bool(op.bias), op.normalize};
  dispatch.params = {logits.place.at,
                     logits.place.row,
                     ids.place.at,
                     ids.place.row,
                     weights.place.at,
                     weights.place.row,
                     ids.columns,
                     static_cast<uint32_t>(op.groups),
                     static_cast<uint32_t>(op.groups_used),
                     bits(op.scale)};
  dispatch.groups = {static_cast<uint32_t>(emit.sizes.rows), 1, 1};
  if (op.bias) dispatch.weights[0] = emit.vector(op.bias.id);
  emit.add(std::move(dispatch));
}
void emit(Emit& emit, const Route& op) {
  emit_route(emit, op, emit.operand(op.logits.id), emit.operand(op.ids.id), emit.operand(op.weights.id));
}

void emit(Emit& emit, const CausalConv& op) {
  const Place in = emit.place(op.in.id), out = emit.place(op.out.id);
  const StepLayout& step = emit.layout.step;
  Dispatch dispatch{.shader = Shader::causal_conv, .constants = {op.silu}};
  dispatch.params = {in.at,
                     in.row,
                     out.at,
                     out.row,
                     emit.columns(op.in.id),
                     emit.columns(op.weight.id),
                     static_cast<uint32_t>(op.cache_layer),
                     static_cast<uint32_t>(emit[op.state.id].shape[0]),
                     step.positions,
                     step.sequences,
                     step.states};
  dispatch.groups = {groups(emit.columns(op.in.id), 64), static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.weights[0] = emit.weight(op.weight.id);
  dispatch.cache = op.state.id;
  emit.add(std::move(dispatch));
}

void emit(Emit& emit, const DeltaRule& op) {
  const Place q = emit.place(op.q.id), k = emit.place(op.k.id), v = emit.place(op.v.id),
              decay = emit.place(op.decay.id), beta = emit.place(op.beta.id), out = emit.place(op.out.id);
  const StepLayout& step = emit.layout.step;
  const uint32_t values = emit.columns(op.v.id), heads = emit.heads(op.v.id);
  Dispatch dispatch{.shader = Shader::delta_rule};
  dispatch.constants = {emit.columns(op.k.id), op.in_turns, op.by_channel(emit.layout.program)};
  dispatch.params = {q.at,
                     q.row,
                     q.head,
                     k.at,
                     k.row,
                     k.head,
                     v.at,
                     v.row,
                     v.head,
                     decay.at,
                     decay.row,
                     decay.head,
                     emit.columns(op.decay.id),
                     beta.at,
                     beta.row,
                     beta.head,
                     emit.columns(op.beta.id),
                     out.at,
                     out.row,
                     out.head,
                     values,
                     emit.heads(op.k.id),
                     heads,
                     static_cast<uint32_t>(op.cache_layer),
                     static_cast<uint32_t>(emit[op.state.id].shape[0]),
                     step.positions,
                     step.sequences,
                     step.states};
  dispatch.groups = {groups(values, 64), static_cast<uint32_t>(emit.sizes.rows), heads};
  dispatch.weights[0] = emit.vector(op.rate.id);
  dispatch.weights[1] = emit.vector(op.bias.id);
  dispatch.cache = op.state.id;
  emit.add(std::move(dispatch));
}

}  // namespace sluice::backend::vulkan
