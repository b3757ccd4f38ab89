#include "program/cuts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "program/op_info.h"

namespace sluice::program {
namespace {

/// Inner columns of a feed-forward network and rows of the vocabulary are cut in multiples of this: what
/// kernels take together.
constexpr int64_t kColumnsTogether = 32;

/// Borders are multiples of `unit`, nearest to the shares; places beyond the end get nothing.
Cut cut_columns(int64_t columns, int64_t unit, std::span<const double> shares) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  const int64_t units = (columns + unit - 1) / unit;
  Cut cut;
  double until = 0;
  int64_t first = 0;
  for (const double share : shares) {
    until += share;
    const int64_t last =
        std::min<int64_t>(columns, unit * std::llround(static_cast<double>(units) * until / total));
    cut.push_back({first, last});
    first = last;
  }
  return cut;
}

/// The same with `by` columns in place of each `each`.
Cut scaled(Cut cut, int64_t each, int64_t by) {
  for (Range& range : cut) range = {range.first / each * by, range.last / each * by};
  return cut;
}

/// Given the ops from the last to the first.
class CutFinder {
 public:
  CutFinder(const Program& program, std::span<const double> shares) : program_(program), shares_(shares) {
    for (const Op& op : program.ops()) {
      if (const auto* attend = std::get_if<Attend>(&op.args)) kv_heads_ = attend->kv_heads;
      if (const auto* attend = std::get_if<GqaAttend>(&op.args)) kv_heads_ = attend->kv_heads(program);
      if (const auto* product = std::get_if<MatmulAdd>(&op.args)) find_units(product->in, product->weight);
      if (const auto* down = std::get_if<MoeDownAdd>(&op.args)) {
        find_units(down->in, down->down);
        if (down->shared_in) find_units(down->shared_in, down->shared_down);
      }
    }
    // All layers' caches are cut alike: one that suits the output of each.
    int64_t together = 1;
    for (const Op& op : program.ops()) {
      TensorId out = kNoTensor;
      if (const auto* attend = std::get_if<Attend>(&op.args)) out = attend->out.id;
      if (const auto* attend = std::get_if<GqaAttend>(&op.args)) out = attend->out.id;
      if (out == kNoTensor) continue;
      const int64_t columns = row_columns(program[out]) / kv_heads_;
      together = std::lcm(together, unit_of(out, columns) / columns);
    }
    if (kv_heads_ > 0) kv_ = cut_columns(kv_heads_, together, shares);
    for (size_t i = program.ops().size(); i-- > 0;) std::visit(*this, program.ops()[i].args);
  }

  Cuts take() && { return {std::move(cuts_), std::move(kv_)}; }

  void operator()(const NormMlaHeads& op) {
    set(op.heads.out.id, cut_of(op.heads.out.id, program_[op.heads.out.id].columns(), shares_));
  }
  void operator()(const Attend& op) { set_by_heads(op.out.id), set_by_heads(op.q.id); }
  void operator()(const KvAppend& op) {
    if (kv_heads_ > 0) set_by_heads(op.latent.id), set_by_heads(op.rope_key.id);
  }
  void operator()(const Rope& op) { set_like(op.in.id, op.out.id); }
  void operator()(const GqaAttend& op) {
    set_by_heads(op.out.id), set_by_heads(op.query.q.id);
    set_by_heads(op.query.k.id), set_by_heads(op.query.v.id);
    if (op.gate) set_by_heads(op.gate.id);
  }
  void operator()(const AddBias& op) { set_like(op.in.id, op.out.id); }
  void operator()(const Scale& op) {
    if (op.out.id == program_.output()) set(op.out.id, cut_of(op.out.id, kColumnsTogether, shares_));
    set_like(op.in.id, op.out.id);
  }
  /// Of a network whose matrices have scales: as norm_gate_up.
  void operator()(const SiluMul& op) {
    set(op.out.id, cut_of(op.out.id, kColumnsTogether, shares_));
    set_like(op.gate.id, op.out.id), set_like(op.up.id, op.out.id);
  }
  void operator()(const RmsNorm& op) { set_like(op.in.id, op.out.id); }
  void operator()(const NormGateUp& op) {
    set(op.gate_up.out.id, cut_of(op.gate_up.out.id, kColumnsTogether, shares_));
  }
  void operator()(const NormMoeGateUp& op) {
    const Tensor& out = program_[op.experts.out.id];
    const Cut cut = cut_columns(out.columns(), unit_of(op.experts.out.id, kColumnsTogether), shares_);
    set(op.experts.out.id, cut);
    if (op.experts.shared_out.id == kNoTensor) return;
    // One op makes both: who has nothing of the experts has nothing of the shared ones.
    std::vector<double> shares(shares_.begin(), shares_.end());
    for (size_t p = 0; p < shares.size(); ++p) {
      if (cut[p].count() == 0) shares[p] = 0;
    }
    set(op.experts.shared_out.id, cut_of(op.experts.shared_out.id, kColumnsTogether, shares));
  }
  /// The queries, keys and values of grouped attention are cut by heads, as who takes them says.
  void operator()(const NormMatmul& op) {
    if (cuts_.contains(program_.storage(op.out_a.id))) return;  // by its reader
    if (kv_heads_ == 0 || op.out_a.id == program_.output())
      set(op.out_a.id, cut_of(op.out_a.id, kColumnsTogether, shares_));
  }
  template <typename Other>
  void operator()(const Other&) {}

 private:
  /// Rows that are multiplied with this weight are cut between its blocks.
  void find_units(Read in, Read weight) {
    const int64_t block = quant::type_info(program_[weight.id].type).block;
    int64_t& unit = units_.try_emplace(program_.storage(in.id), 1).first->second;
    unit = std::lcm(unit, block);
  }
  /// What borders are multiples of: `least`, and whole blocks of what the activation is multiplied with.
  int64_t unit_of(TensorId id, int64_t least) const {
    const auto found = units_.find(program_.storage(id));
    return found == units_.end() ? least : std::lcm(least, found->second);
  }
  Cut cut_of(TensorId id, int64_t least, std::span<const double> shares) const {
    return cut_columns(row_columns(program_[id]), unit_of(id, least), shares);
  }
  void set(TensorId id, Cut cut) { cuts_[program_.storage(id)] = std::move(cut); }
  void set_by_heads(TensorId id) { set(id, scaled(kv_, 1, row_columns(program_[id]) / kv_heads_)); }
  void set_like(TensorId id, TensorId other) {
    if (const auto found = cuts_.find(program_.storage(other)); found != cuts_.end()) set(id, found->second);
  }

  const Program& program_;
  std::span<const double> shares_;
  int64_t kv_heads_ = 0;
  Cut kv_;
  std::map<TensorId, int64_t> units_;  // by storage
  std::map<TensorId, Cut> cuts_;
};

}  // namespace

Cuts find_cuts(const Program& program, std::span<const double> shares) {
  return CutFinder(program, shares).take();
}

}  // namespace sluice::program
