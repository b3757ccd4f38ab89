#include "program/offload.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "program/builder.h"
#include "program/places.h"

namespace sluice::program {
namespace {

constexpr int32_t kSecond = 1;

/// Steps of more rows are streamed, where any are: what is made for steps over places need not be larger.
constexpr int64_t kMostExchanged = 512;

/// A mixture's two ops: moe_down_add is the next that reads what norm_moe_gate_up makes.
struct Mixture {
  size_t gate_up, down;
};
std::vector<Mixture> mixtures(const Program& program) {
  std::vector<Mixture> list;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const auto* gate_up = std::get_if<NormMoeGateUp>(&program.ops()[i].args);
    if (gate_up == nullptr) continue;
    for (size_t k = i + 1; k < program.ops().size(); ++k) {
      const auto* down = std::get_if<MoeDownAdd>(&program.ops()[k].args);
      if (down == nullptr || down->in.id != gate_up->experts.out.id) continue;
      list.push_back({i, k});
      break;
    }
  }
  return list;
}

/// Its routed experts' weights: gate, up, down.
std::array<TensorId, 3> experts_of(const Program& program, const Mixture& mixture) {
  const MoeGateUp& experts = std::get<NormMoeGateUp>(program.ops()[mixture.gate_up].args).experts;
  return {experts.gate.id, experts.up.id, std::get<MoeDownAdd>(program.ops()[mixture.down].args).down.id};
}

int64_t matrix_bytes(const Tensor& weight) {
  return quant::bytes_of(quant::type_info(weight.type), weight.shape[1] * weight.shape[2]);
}

/// Whether an expert is three matrices and nothing else, each in one piece of the file, and a row selects
/// fewer than all.
bool can_have_slots(const Program& program, const Mixture& mixture) {
  const MoeGateUp& experts = std::get<NormMoeGateUp>(program.ops()[mixture.gate_up].args).experts;
  const auto& down = std::get<MoeDownAdd>(program.ops()[mixture.down].args);
  if (experts.gate_bias || down.down_bias) return false;
  if (experts.gate_scale || experts.up_scale || down.down_scale) return false;
  if (program[down.down.id].shape[0] <= program[down.ids.id].columns()) return false;
  return std::ranges::all_of(experts_of(program, mixture),
                             [&](TensorId id) { return program[id].stride[1] == program[id].columns(); });
}

class Offloader {
 public:
  explicit Offloader(const Program& program) : in_(program) {
    for (const Tensor& tensor : program.tensors()) out_.add(tensor);
    out_.set_output(program.output());
  }

  /// slots: of each mixture that leaves; empty: of none.
  Offloaded run(size_t count, const std::vector<int64_t>& slots) {
    const std::vector<Mixture> all = mixtures(in_);
    CHECK(count <= all.size(), "{} of {} mixtures", count, all.size());
    CHECK(slots.empty() || slots.size() == count, "slots of {} of {} mixtures", slots.size(), count);
    const size_t stay = all.size() - count;
    size_t next = stay;
    for (size_t i = 0; i < in_.ops().size(); ++i) {
      const Op& op = in_.ops()[i];
      b_.set_layer(op.layer);
      if (next < all.size() && i == all[next].gate_up) {
        select(std::get<NormMoeGateUp>(op.args));
      } else if (next < all.size() && i == all[next].down) {
        const auto& down = std::get<MoeDownAdd>(op.args);
        slots.empty() ? add_up(down) : add_up_slotted(down, op.layer, slots[next - stay]);
        ++next;
      } else {
        out_.add(op);
      }
    }
    return {std::move(out_), std::move(slotted_)};
  }

 private:
  /// The first place routes; what the second one takes goes there.
  void select(const NormMoeGateUp& op) {
    const Tensor in = out_[op.route.in.id];
    NormRoute route = op.route;
    route.normed.id = b_.activation("normed", kStepRows, 1, in.columns());
    b_.emit(route);
    selected_ = {route.route.ids.id, route.route.weights.id};
    there_ = {copy(route.normed.id, kSecond), copy(selected_.ids, kSecond), copy(selected_.weights, kSecond)};
    gate_up_ = op.experts;
    gate_up_.in = {route.normed.id};
    if (op.shared_router) gate_up_shared(b_.matmul(route.normed.id, op.shared_router.id));
  }

  /// Routed experts at the second place, shared ones and the residual at the first.
  void add_up(const MoeDownAdd& op) {
    const TensorId sum = sum_there(op);
    Read rest = op.residual;
    if (op.shared_in) {
      gate_up_shared();
      rest = {op.residual ? b_.matmul_add(op.shared_in.id, op.shared_down.id, op.residual.id)
                          : b_.matmul(op.shared_in.id, op.shared_down.id)};
    }
    const TensorId back = copy(sum, 0);
    CHECK(rest, "{}: nothing is added to the experts", in_.op_name(in_.ops().back()));
    b_.emit(Add{{back}, rest, op.out});
  }

  /// The same, with those experts at the first place that have a slot there: the residual, the shared experts
  /// and these, and what comes back is added last.
  void add_up_slotted(const MoeDownAdd& op, int32_t layer, int64_t slots) {
    SlottedExperts slotted{.layer = layer,
                           .experts = in_[op.down.id].shape[0],
                           .slots = slots,
                           .used = in_[op.ids.id].columns(),
                           .ids = selected_.ids,
                           .weights = selected_.weights,
                           .there_ids = there_.ids,
                           .there_weights = there_.weights};
    const auto slots_for = [&](size_t i, Read experts) {
      const Tensor& w = in_[experts.id];
      const TensorId id = b_.weight(w.name + ".slots", w.type, slots, w.shape[1], w.shape[2]);
      slotted.matrices[i] = {experts.id, id};
      return Read{id};
    };
    MoeGateUp hits = gate_up_;  // and the shared experts, unless they went before
    hits.gate = slots_for(0, gate_up_.gate), hits.up = slots_for(1, gate_up_.up);
    const Read down = slots_for(2, op.down);
    const TensorId sum = sum_there(op);
    hits.ids = {b_.activation("slot_ids", kStepRows, 1, slotted.used, quant::Type::I32)};
    const TensorId weights = b_.activation("slot_weights", kStepRows, 1, slotted.used);
    const Tensor gated = out_[gate_up_.out.id];
    hits.out = {b_.activation("slot_gated", kStepRows, gated.heads(), gated.columns())};
    b_.emit(hits);
    const TensorId here = b_.moe_down_add({.in = {hits.out.id},
                                           .ids = hits.ids,
                                           .weights = {weights},
                                           .down = down,
                                           .shared_in = op.shared_in,
                                           .shared_down = op.shared_down,
                                           .residual = op.residual});
    const TensorId back = copy(sum, 0);
    b_.emit(Add{{back}, {here}, op.out});
    slotted.slot_ids = hits.ids.id, slotted.slot_weights = weights;
    slotted.there_sum = sum, slotted.sum = back;
    slotted_.push_back(slotted);
  }

  /// The selected experts at the second place.
  TensorId sum_there(const MoeDownAdd& op) {
    b_.set_place(kSecond);
    const Tensor gated = out_[gate_up_.out.id];
    MoeGateUp routed{.in = {there_.normed}, .ids = {there_.ids}};
    routed.gate = moved(gate_up_.gate), routed.up = moved(gate_up_.up), routed.form = gate_up_.form;
    routed.gate_bias = moved(gate_up_.gate_bias), routed.up_bias = moved(gate_up_.up_bias);
    routed.gate_scale = moved(gate_up_.gate_scale), routed.up_scale = moved(gate_up_.up_scale);
    routed.out = {b_.activation("gated", kStepRows, gated.heads(), gated.columns())};
    b_.emit(routed);
    const TensorId sum = b_.moe_down_add({.in = {routed.out.id},
                                          .ids = {there_.ids},
                                          .weights = {there_.weights},
                                          .down = moved(op.down),
                                          .down_bias = moved(op.down_bias),
                                          .down_scale = moved(op.down_scale)});
    b_.set_place(0);
    return sum;
  }

  /// The shared experts' first half, once. share: how much they count, or none.
  void gate_up_shared(TensorId share = kNoTensor) {
    if (!gate_up_.shared_gate) return;
    const Write out = gate_up_.shared_out;
    if (share != kNoTensor) {
      const Tensor gated = out_[out.id];
      gate_up_.shared_out = {b_.activation(gated.name, gated.shape[0], 1, gated.columns())};
    }
    b_.emit(GateUp{gate_up_.in, gate_up_.shared_gate, gate_up_.shared_up, gate_up_.shared_out});
    if (share != kNoTensor) b_.emit(SigmoidMul{{gate_up_.shared_out.id}, {share}, out});
    gate_up_.shared_gate = gate_up_.shared_up = {};
    gate_up_.shared_out = {};
  }

  /// A copy of an activation at another place.
  TensorId copy(TensorId id, int32_t place) {
    const Tensor tensor = out_[id];
    b_.set_place(place);
    const TensorId there =
        b_.activation(tensor.name, tensor.shape[0], tensor.heads(), tensor.columns(), tensor.type);
    b_.emit(Copy{{id}, {there}});
    b_.set_place(0);
    return there;
  }

  /// A weight, if there is one, at the builder's place.
  Read moved(Read weight) {
    if (!weight) return weight;
    const Tensor& w = in_[weight.id];
    return {b_.weight_part(weight.id, {0, w.shape[0]}, {0, w.shape[1]}, {0, w.shape[2]})};
  }

  const Program& in_;
  Program out_;
  Builder b_{out_};
  std::vector<SlottedExperts> slotted_;
  struct {
    TensorId ids, weights;
  } selected_{};
  struct {
    TensorId normed, ids, weights;
  } there_{};
  MoeGateUp gate_up_;
};

}  // namespace

std::vector<RoutedExperts> routed_experts(const Program& program) {
  std::vector<RoutedExperts> list;
  for (const Mixture& mixture : mixtures(program)) {
    const Op& record = program.ops()[mixture.gate_up];
    int64_t bytes = 0;
    for (const TensorId id : experts_of(program, mixture)) {
      const Tensor& weight = program[id];
      bytes +=
          quant::bytes_of(quant::type_info(weight.type), weight.shape[0] * weight.shape[1] * weight.shape[2]);
    }
    list.push_back({record.layer, bytes});
  }
  return list;
}

Program offload_experts(const Program& program, size_t count) {
  return Offloader(program).run(count, {}).program;
}

std::vector<int64_t> slots_of(const Program& program, size_t count, int64_t bytes) {
  const std::vector<Mixture> all = mixtures(program);
  if (bytes <= 0 || count == 0) return {};
  CHECK(count <= all.size(), "{} of {} mixtures", count, all.size());
  std::vector<int64_t> slots, most, expert_bytes;
  int64_t of_all = 0;  // bytes of a slot in each
  for (size_t i = all.size() - count; i < all.size(); ++i) {
    const auto& down = std::get<MoeDownAdd>(program.ops()[all[i].down].args);
    if (!can_have_slots(program, all[i])) return {};
    int64_t each = 0;
    for (const TensorId id : experts_of(program, all[i])) each += matrix_bytes(program[id]);
    of_all += each;
    most.push_back(program[down.down.id].shape[0]), expert_bytes.push_back(each);
    slots.push_back(program[down.ids.id].columns() + 1);  // that dealing always finds distinct ones
  }
  for (size_t i = 0; i < count; ++i) {
    slots[i] = std::min(most[i], std::max(slots[i], bytes / of_all));
    bytes -= slots[i] * expert_bytes[i];
    of_all -= expert_bytes[i];  // the rest is shared by those behind
  }
  return bytes >= 0 ? slots : std::vector<int64_t>{};
}

Program stream_experts(const Program& program, size_t count) {
  const std::vector<Mixture> all = mixtures(program);
  CHECK(count <= all.size(), "{} of {} mixtures", count, all.size());
  std::vector<bool> streamed(program.tensors().size(), false);
  for (size_t i = all.size() - count; i < all.size(); ++i) {
    for (const TensorId id : experts_of(program, all[i]))
      streamed[static_cast<size_t>(program.storage(id))] = true;
  }
  Program out;
  for (size_t id = 0; id < streamed.size(); ++id) {
    Tensor tensor = program.tensors()[id];
    tensor.streamed = streamed[id];
    out.add(std::move(tensor));
  }
  for (const Op& op : program.ops()) out.add(op);
  out.set_output(program.output());
  return out;
}

Offloaded offloaded(const Program& program, const Offload& offload) {
  const std::vector<int64_t> slots = slots_of(program, offload.mixtures, offload.slot_bytes);
  const bool again = offload.stream_rows != kNeverStream || !slots.empty();
  const Program marked = again ? stream_experts(program, offload.mixtures) : program;
  return Offloader(marked).run(offload.mixtures, slots);
}

bool streams(const Offload& offload, const Backend& first, const CompileOptions& options) {
  return offload.stream_rows != kNeverStream && offload.mixtures > 0 && first.facts().streams &&
         !options.batch_invariant;
}

// Steps run part by part, so none pauses.
CompileOptions options_over_places(CompileOptions options, bool streams) {
  options.aside_rows = 0;
  if (streams) options.max_rows = std::min(options.max_rows, std::max(kMostExchanged, options.max_outputs));
  return options;
}

// Graphs are made when a step needs them.
void check_runs_parts(const Backend& backend, const CompileOptions& options) {
  if (options.batch_invariant && !backend.facts().invariant_parts)
    fail("--batch-invariant: not where several devices share a model and one of them is {}", backend.name());
}

CompileOptions options_of_streamed(CompileOptions options) {
  options.aside_rows = 0;
  options.warm = false;
  return options;
}

void add(MemoryNeeds& sum, const MemoryNeeds& needs) {
  for (const auto bytes :
       {&MemoryNeeds::weights_bytes, &MemoryNeeds::cache_bytes, &MemoryNeeds::scratch_bytes}) {
    if (__builtin_add_overflow(sum.*bytes, needs.*bytes, &(sum.*bytes)))
      sum.*bytes = std::numeric_limits<int64_t>::max();
  }
}

MemoryNeeds offload_needs(const Backend& first, const Program& program, const Offload& offload,
                          const CompileOptions& options) {
  const bool is_streamed = streams(offload, first, options);
  MemoryNeeds needs = first.memory_needs(program_at(offloaded(program, offload).program, 0),
                                         options_over_places(options, is_streamed));
  if (!is_streamed) return needs;
  // The same weights and caches, room for those that come, and activations of its own.
  const MemoryNeeds whole =
      first.memory_needs(stream_experts(program, offload.mixtures), options_of_streamed(options));
  needs.weights_bytes = whole.weights_bytes;
  add(needs, {.scratch_bytes = whole.scratch_bytes});
  return needs;
}

}  // namespace sluice::program
