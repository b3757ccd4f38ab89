#include "backend/cpu/rounded_values.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/tiled.h"
#include "program/derived.h"
#include "program/op_info.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Rows of a step from which on ops can leave an activation rounded, or take it so.
class RoundingFinder {
 public:
  RoundingFinder(const Program& program, const WeightTable& table) : program_(program), table_(table) {}

  int64_t left(const Op& op, TensorId id) const {
    if (std::holds_alternative<RmsNorm>(op.args)) return program_[id].heads() == 1 ? 0 : kNever;
    if (const auto* gated = std::get_if<GateUp>(&op.args)) return tiled(gated->gate, gated->up);
    if (const auto* gated = std::get_if<MoeGateUp>(&op.args)) {
      if (id == gated->shared_out.id) return tiled(gated->shared_gate, gated->shared_up);
      return of_experts(gated->gate, id, tiled(gated->gate, gated->up));
    }
    return kNever;
  }

  int64_t taken(const Op& op, TensorId id) const {
    if (const auto* product = std::get_if<Matmul>(&op.args)) return tiled(product->weight);
    if (const auto* product = std::get_if<MatmulAdd>(&op.args))
      return id == product->in.id ? tiled(product->weight) : kNever;
    if (const auto* gated = std::get_if<GateUp>(&op.args)) return tiled(gated->gate, gated->up);
    if (const auto* down = std::get_if<MoeDownAdd>(&op.args)) {
      if (down->shared_in && id == down->shared_in.id) return tiled(down->shared_down);
      if (id == down->in.id && TiledChunk::whole(program_[id].columns()))
        return of_experts(down->down, id, tiled(down->down));
    }
    return kNever;
  }

 private:
  int64_t tiled(Read weight) const {
    const Matrix matrix = table_.matrix(weight.id, 0, 0);
    return matrix.unpack == nullptr ? kNever : matrix.tiled_from;
  }
  int64_t tiled(Read one, Read other) const { return std::max(tiled(one), tiled(other)); }

  /// Rows of a step where products want `from` of an expert (expert_products), and which are as many as make
  /// the groups of all experts fit: each may leave nearly one of its groups empty.
  int64_t of_experts(Read weight, TensorId value, int64_t from) const {
    if (from == kNever) return kNever;
    const int64_t experts = program_[weight.id].shape[0], used = program_[value].heads();
    return std::max((2 * from * experts + 3 * used - 1) / (3 * used),
                    (kGroupRows * experts + used - 1) / used);
  }

  const Program& program_;
  const WeightTable& table_;
};

}  // namespace

std::vector<int64_t> rounded_from(const Program& program, const WeightTable& table, bool tiles) {
  const size_t count = program.tensors().size();
  std::vector<int64_t> from(count, tiles ? kLeastRounded : kNever);
  std::vector<bool> written(count), read(count);
  const RoundingFinder finder(program, table);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = program.tensors()[i];
    const bool plain = t.kind == Kind::Activation && t.type == quant::Type::F32 && t.base == kNoTensor &&
                       t.columns() % kQuantColumns == 0;
    if (!plain) from[i] = kNever;
    if (t.base != kNoTensor) from[static_cast<size_t>(t.base)] = kNever;
  }
  if (program.output() != kNoTensor) from[static_cast<size_t>(program.output())] = kNever;
  // Steps give outputs' hidden states as they are.
  if (const TensorId hidden = hidden_states(program); hidden != kNoTensor)
    from[static_cast<size_t>(hidden)] = kNever;
  if (program.hidden_out() != kNoTensor) from[static_cast<size_t>(program.hidden_out())] = kNever;
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool writes) {
      const auto i = static_cast<size_t>(id);
      (writes ? written : read)[i] = true;
      if (from[i] != kNever) from[i] = std::max(from[i], writes ? finder.left(op, id) : finder.taken(op, id));
    });
  }
  for (size_t i = 0; i < count; ++i) {
    if (!written[i] || !read[i]) from[i] = kNever;  // the list's inputs and results are floats
  }
  return from;
}

}  // namespace sluice::backend::cpu
