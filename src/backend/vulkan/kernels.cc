#include "backend/vulkan/kernels.h"

#include <algorithm>

#include "backend/vulkan/emit.h"
#include "program/op_info.h"

namespace sluice::backend::vulkan {
namespace {

using namespace program;

constexpr int64_t kScratchAlign = 256;
/// Experts that route.comp has shared memory for.
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kWidestHead = 1536;
/// Numbers of a state's column that an invocation keeps.
constexpr int64_t kLongestKey = 256;
constexpr int64_t kShortestStretch = 32;
/// Of so few rows more stretches keep a large device busy.
constexpr int64_t kAloneRows = 4, kMostStretches = 64;

bool whole_fours(const Tensor& tensor) {
  return tensor.columns() % 4 == 0 && tensor.offset % 4 == 0 && tensor.stride[0] % 4 == 0 &&
         tensor.stride[1] % 4 == 0;
}

/// What has a kernel, and for which operands.
struct Has {
  const Program& p;

  bool vector(Read id) const { return !id || (is_vector(p[id.id]) && p[id.id].offset == 0); }
  bool floats(Read id) const { return p[id.id].type == quant::Type::F32 && p[id.id].offset == 0; }
  bool matrix(Read id) const { return quant::type_info(p[id.id].type).decode != nullptr; }
  bool cache(TensorId id) const {
    const auto type = p[id].type;
    return (type == quant::Type::F16 || type == quant::Type::Q8_0 || type == quant::Type::F32) &&
           p[id].columns() % 4 == 0 && p[id].exact % 4 == 0 && (p[id].columns() - p[id].exact) % 4 == 0;
  }

  /// Of four heads there is room in a workgroup's memory, 32 KB everywhere.
  bool attended(TensorId id) const { return p[id].columns() % 4 == 0 && p[id].columns() <= kWidestHead; }

  bool operator()(const Embed& op) const { return matrix(op.table); }
  bool operator()(const RmsNorm& op) const { return vector(op.weight); }
  bool operator()(const Matmul& op) const { return matrix(op.weight); }
  bool operator()(const MatmulAdd& op) const { return matrix(op.weight) && !op.bias; }
  bool operator()(const GateUp& op) const { return same_units(op.gate, op.up); }
  bool operator()(const NormGateUp& op) const {
    return vector(op.norm) && same_units(op.gate_up.gate, op.gate_up.up);
  }
  bool operator()(const NormMatmul& op) const {
    return vector(op.norm) && matrix(op.a) && p[op.a.id].columns() % 8 == 0 &&
           p[op.norm.id].columns() % 8 == 0;
  }
  bool operator()(const HeadMatmul& op) const { return matrix(op.weight); }
  bool operator()(const Rope& op) const { return !op.factors || matrix(op.factors); }
  bool operator()(const KvAppend& op) const { return cache(op.cache.id); }
  bool operator()(const MlaAttend& op) const {
    return cache(op.cache.id) && attended(op.q.id) && attended(op.out.id);
  }
  bool operator()(const Attend& op) const {
    return cache(op.cache.id) && vector(op.sinks) && attended(op.q.id) && attended(op.out.id);
  }
  bool operator()(const Route& op) const {
    return vector(op.bias) && p[op.logits.id].columns() <= kMostExperts;
  }
  /// Norms and vectors of four are read where they are multiplied.
  bool operator()(const MlaHeads& op) const {
    const MlaQuery& q = op.query;
    const int64_t rank = q.rank(p), nope = q.nope(p), rotated = q.rope_columns(p);
    return (!q.q || (matrix(q.q) && p[q.q.id].columns() % 8 == 0)) && vector(q.q_norm) && vector(q.kv_norm) &&
           matrix(q.k_b) && matrix(op.v_b) && (!q.factors || matrix(q.factors)) && cache(q.cache.id) &&
           rank % 8 == 0 && rotated % 4 == 0 && nope % 4 == 0 && rank + rotated <= kWidestHead;
  }
  bool operator()(const NormMoeGateUp& op) const {
    const NormRoute& route = op.route;
    const MoeGateUp& experts = op.experts;
    return !route.router_bias && !op.shared_router && vector(route.norm) && vector(route.route.bias) &&
           matrix(route.router) && p[route.router.id].shape[1] <= kMostExperts && !is_adjusted(experts) &&
           same_units(experts.gate, experts.up) &&
           (!experts.shared_gate || same_units(experts.shared_gate, experts.shared_up));
  }
  bool operator()(const ExpertMatmul& op) const { return matrix(op.weight); }
  bool operator()(const ExpertBias& op) const { return floats(op.bias); }
  bool operator()(const MoeGateUp& op) const { return !is_adjusted(op) && same_units(op.gate, op.up); }
  bool operator()(const MoeDownAdd& op) const {
    return !op.down_bias && !op.down_scale && p[op.down.id].columns() % 8 == 0 && whole_fours(p[op.in.id]) &&
           (!op.shared_in || (p[op.shared_down.id].columns() % 8 == 0 && whole_fours(p[op.shared_in.id])));
  }
  bool operator()(const ExpertCombine&) const { return true; }
  bool operator()(const SiluMul&) const { return true; }
  bool operator()(const Add&) const { return true; }
  bool operator()(const AddBias& op) const { return vector(op.bias); }
  bool operator()(const GatherRows&) const { return true; }
  bool operator()(const AttentionTemperature&) const { return true; }
  bool operator()(const CausalConv& op) const { return floats(op.weight); }
  bool operator()(const SigmoidMul&) const { return true; }
  bool operator()(const Scale& op) const { return vector(op.scale); }
  bool operator()(const DeltaRule& op) const {
    return vector(op.rate) && vector(op.bias) && p[op.k.id].columns() <= kLongestKey;
  }
  template <typename Other>
  bool operator()(const Other&) const {
    return false;
  }

 private:
  /// Products have biases or scales of their own.
  static bool is_adjusted(const MoeGateUp& op) { return op.gate_bias || op.gate_scale || op.up_scale; }
  /// Units of a gate and its up have the same columns.
  bool same_units(Read gate, Read up) const {
    return matrix(gate) && p[gate.id].type == p[up.id].type && p[gate.id].columns() % 8 == 0;
  }
};

struct EmitOp {
  Emit& to;

  void operator()(const Matmul& op) const {
    emit_product(to, {.in = of(op.in.id), .weight = op.weight.id, .out = of(op.out.id)});
  }
  void operator()(const MatmulAdd& op) const {
    const Operand residual = op.residual ? of(op.residual.id) : Operand{};
    emit_product(to, {.in = of(op.in.id),
                      .weight = op.weight.id,
                      .out = of(op.out.id),
                      .added = op.residual ? &residual : nullptr});
  }
  void operator()(const GateUp& op) const {
    emit_product(to, {.in = of(op.in.id), .weight = op.up.id, .out = of(op.out.id), .gate = op.gate.id});
  }
  void operator()(const NormGateUp& op) const {
    emit_product(to, {.in = of(op.in.id),
                      .weight = op.gate_up.up.id,
                      .out = of(op.gate_up.out.id),
                      .gate = op.gate_up.gate.id,
                      .norm = op.norm.id,
                      .epsilon = op.epsilon});
  }
  /// Two of them are one dispatch.
  void operator()(const NormMatmul& op) const {
    const auto products = op.products();
    ProductOf product{.in = of(op.in.id), .out = of(op.out_a.id), .norm = op.norm.id, .epsilon = op.epsilon};
    bool coded = true;
    for (const auto& [weight, out] : products)
      if (weight) product.weight = weight.id, coded = coded && takes_codes(to, product);
    Codes codes;
    if (coded) {
      codes = emit_codes(to, product.in, to[op.a.id].columns(), 1, op.norm.id, op.epsilon);
      to.wait();
      product.codes = &codes, product.norm = kNoTensor;
    }
    for (size_t i = 0; i < products.size() && products[i].weight; i += 2) {
      product.weight = products[i].weight.id, product.out = of(products[i].out.id);
      const auto& [beside, out] = products[i + 1];
      const SideProduct side = beside ? SideProduct{beside.id, of(out.id)} : SideProduct{};
      product.side = beside ? &side : nullptr;
      emit_product(to, product);
    }
  }
  void operator()(const HeadMatmul& op) const {
    if (op.reduce == Reduce::Rows) return emit_rows_product(to, of(op.in.id), op.weight.id, of(op.out.id));
    emit_product(to, {.in = of(op.in.id), .weight = op.weight.id, .out = of(op.out.id), .by_head = true});
  }
  void operator()(const ExpertMatmul& op) const {
    const Operand ids = of(op.ids.id);
    emit_product(to, {.in = of(op.in.id), .weight = op.weight.id, .out = of(op.out.id), .ids = &ids});
  }
  void operator()(const MoeGateUp& op) const {
    const Operand ids = of(op.ids.id);
    emit_product(to, {.in = of(op.in.id),
                      .weight = op.up.id,
                      .out = of(op.out.id),
                      .gate = op.gate.id,
                      .ids = &ids,
                      .form = op.form});
    if (op.shared_gate)
      emit_product(to, {.in = of(op.in.id),
                        .weight = op.shared_up.id,
                        .out = of(op.shared_out.id),
                        .gate = op.shared_gate.id});
  }
  template <typename Other>
  void operator()(const Other& op) const {
    if constexpr (requires { emit(to, op); }) emit(to, op);
  }

 private:
  Operand of(TensorId id) const { return to.operand(id); }
};

/// What ops' dispatches leave for each other, in the steps that need most.
int64_t scratch_bytes(const Layout& layout) {
  int64_t bytes = 0;
  const int64_t longest = layout.options.cache_pages * kPageRows;
  // An op of many rows may do with less than one of half as many.
  for (int64_t next = 1, rows = 0; rows < layout.options.max_rows; next *= 2) {
    rows = std::min(next, layout.options.max_rows);
    const Sizes sizes{rows, layout.options.max_outputs, longest};
    for (const Op& op : layout.program.ops()) {
      Emit to{layout, sizes};
      std::visit(EmitOp{to}, op.args);
      bytes = std::max(bytes, to.scratch_bytes);
    }
  }
  if (layout.program.output() == kNoTensor) return bytes;
  const int64_t most = std::min(kMostSorted, layout.options.max_rows);
  const Sizes sizes{most, std::min(most, layout.options.max_outputs)};
  Emit to{layout, sizes};
  emit_top(to, to.operand(layout.program.output()));
  return std::max(bytes, to.scratch_bytes);
}

}  // namespace

bool is_vector(const Tensor& tensor) { return tensor.shape[0] == 1 && tensor.shape[1] == 1; }

Layout::Layout(const Program& of, const CompileOptions& asked, int64_t subgroup, bool four_bytes)
    : program(of),
      options(asked),
      subgroup_size(subgroup),
      dot4(four_bytes),
      plan(plan_memory(of, asked.max_rows, asked.max_outputs, 2)),
      step(of, asked) {
  scratch_at = (plan.arena_bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  arena_bytes = std::max(scratch_at + scratch_bytes(*this), kScratchAlign);
}

Stretches stretches(const Layout& layout, const Sizes& sizes) {
  // Where rows must not feel each other there is one order of every sum: that of the context.
  if (sizes.rows > kStretchedRows || layout.options.batch_invariant)
    return {std::max<int64_t>(sizes.longest, 1), 1};
  const int64_t most = sizes.rows <= kAloneRows ? kMostStretches : kMostStretches / 2;
  const int64_t positions = std::max(kShortestStretch, (sizes.longest + most - 1) / most);
  return {positions, std::max<int64_t>(1, (sizes.longest + positions - 1) / positions)};
}

bool has(const Program& program, const Op& op) { return std::visit(Has{program}, op.args); }

std::vector<Dispatch> dispatches(const Layout& layout, const Op& op, const Sizes& sizes) {
  Emit to{layout, sizes};
  std::visit(EmitOp{to}, op.args);
  return std::move(to.list);
}

Top top_of(const Layout& layout, const Sizes& sizes) {
  Emit to{layout, sizes};
  const int64_t at = emit_top(to, to.operand(layout.program.output()));
  return {std::move(to.list), at};
}

Place Emit::place(TensorId id) const {
  const Tensor& tensor = (*this)[id];
  const int64_t base = layout.plan.offset_bytes[static_cast<size_t>(layout.program.storage(id))] / 4;
  return {static_cast<uint32_t>(base + tensor.offset), static_cast<uint32_t>(tensor.stride[0]),
          static_cast<uint32_t>(tensor.stride[1])};
}

int64_t Emit::rows(TensorId id) const { return Program::rows((*this)[id], sizes.rows, sizes.outputs); }

bool Emit::is_aligned(TensorId id) const { return whole_fours((*this)[id]); }

Operand Emit::operand(TensorId id) const {
  return {place(id), heads(id), columns(id), rows(id), rows_word(id), is_aligned(id)};
}

Operand Emit::scratch(int64_t heads, int64_t columns) {
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  return {{scratch_at(sizes.rows * heads * columns), u(heads * columns), u(columns)},
          u(heads),
          u(columns),
          sizes.rows,
          0,
          columns % 4 == 0};
}

uint32_t Emit::scratch_at(int64_t floats) {
  const int64_t at = layout.scratch_at + scratch_bytes;
  scratch_bytes += (floats * 4 + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  return static_cast<uint32_t>(at / 4);
}

void Emit::add(Dispatch dispatch) {
  dispatch.waits = waits;
  waits = false;
  list.push_back(std::move(dispatch));
}

WeightBytesAt bytes_at(const Tensor& tensor) {
  const quant::TypeInfo& type = quant::type_info(tensor.type);
  const auto bytes = [&](int64_t elements) { return static_cast<uint32_t>(quant::bytes_of(type, elements)); };
  return {bytes(tensor.offset), bytes(tensor.stride[0]), bytes(tensor.stride[1])};
}

}  // namespace sluice::backend::vulkan
