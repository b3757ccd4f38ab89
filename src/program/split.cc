// A program of one place becomes one of several: every op becomes one op a place, of what cuts.h says that
// the place has of its activations.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "program/builder.h"
#include "program/cuts.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::program {
namespace {

class Splitter {
 public:
  Splitter(const Program& program, std::span<const double> shares, Tables tables)
      : in_(program), cuts_(find_cuts(program, shares)), tables_(tables) {
    for (size_t p = 0; p < shares.size(); ++p) {
      const auto has_some = [p](const auto& one) { return one.second[p].count() > 0; };
      if (std::ranges::any_of(cuts_.activations, has_some)) places_.push_back(static_cast<int32_t>(p));
    }
    for (const Tensor& tensor : program.tensors()) out_.add(is_kept(tensor) ? by_name_alone(tensor) : tensor);
  }

  Program run() {
    for (const Op& op : in_.ops()) {
      op_ = &op;
      b_.set_layer(op.layer);
      std::visit(*this, op.args);
    }
    b_.set_layer(-1);
    const TensorId output = in_.output();
    if (is_cut(output)) {
      AllGather all;
      for (const int32_t p : holders(output)) all.in.push_back({at(output, p)});
      b_.set_place(places_.front());
      all.out.push_back({b_.activation("logits", kOutputRows, 1, in_[output].columns())});
      out_.set_output(all.out[0].id);
      b_.emit(all);
    } else {
      out_.set_output(at(output, places_.front()));
    }
    return std::move(out_);
  }

  /// Where the table lies at the first place alone, the others get copies of a step's rows.
  void operator()(const Embed& op) {
    TensorId first = kNoTensor;
    for (const int32_t p : places_) {
      b_.set_place(p);
      if (tables_ == Tables::Everywhere || first == kNoTensor) {
        set(op.out.id, p, first = b_.embed(whole(op.table).id));
      } else {
        b_.emit(Copy{{first}, make(op.out.id, p)});
      }
    }
  }

  void operator()(const NormMlaHeads& op) {
    const int64_t value = in_[op.heads.out.id].columns(), query = op.query_columns(in_);
    each_holder(op.heads.out.id, [&](int32_t p, Range columns) {
      const Range heads{columns.first / value, columns.last / value};
      const Range queries{heads.first * query, heads.last * query};
      NormMlaHeads part = op;
      const bool is_low_rank = static_cast<bool>(op.heads.query.q);
      part.products.in.id = at(op.products.in.id, p);
      part.products.norm = whole(op.products.norm);
      part.products.a = is_low_rank ? whole(op.products.a) : rows(op.products.a, queries);
      part.products.b = whole(op.products.b);
      MlaQuery& q = part.heads.query;
      q.q_norm = whole(q.q_norm);
      if (is_low_rank) q.q = rows(q.q, queries);
      q.kv_norm = whole(q.kv_norm);
      q.k_b = matrices(q.k_b, heads);
      q.factors = whole(q.factors);
      q.cache.id = cache_at(q.cache.id, p, in_[q.cache.id].columns());
      part.heads.v_b = matrices(op.heads.v_b, heads);
      part.heads.out = make(op.heads.out.id, p);
      b_.emit(part);
    });
  }

  void operator()(const MatmulAdd& op) {
    if (!is_cut(op.in.id)) {
      return each_holder(op.out.id, [&](int32_t p, Range) {
        b_.emit(MatmulAdd{{at(op.in.id, p)},
                          whole(op.weight),
                          op.residual ? Read{at(op.residual.id, p)} : Read{},
                          whole(op.bias),
                          make(op.out.id, p)});
      });
    }
    std::vector<Read> partials;
    each_holder(op.in.id, [&](int32_t p, Range part) {
      const Write out{like("partial", op.out.id)};
      b_.emit(MatmulAdd{{at(op.in.id, p)},
                        columns(op.weight, part),
                        once(op.residual, partials, p),
                        partials.empty() ? whole(op.bias) : Read{},
                        out});
      partials.push_back({out.id});
    });
    add_up(std::move(partials), op.out);
  }

  void operator()(const NormGateUp& op) {
    each_holder(op.gate_up.out.id, [&](int32_t p, Range part) {
      b_.emit(
          NormGateUp{{at(op.in.id, p)},
                     whole(op.norm),
                     {{}, rows(op.gate_up.gate, part), rows(op.gate_up.up, part), make(op.gate_up.out.id, p)},
                     op.epsilon});
    });
  }

  void operator()(const NormMoeGateUp& op) {
    each_holder(op.experts.out.id, [&](int32_t p, Range part) {
      NormMoeGateUp mine = op;
      NormRoute& route = mine.route;
      route.in.id = at(op.route.in.id, p);
      route.norm = whole(op.route.norm), route.router = whole(op.route.router);
      route.router_bias = whole(op.route.router_bias);
      mine.shared_router = whole(op.shared_router);
      route.route.bias = whole(op.route.route.bias);
      route.route.ids = make(op.route.route.ids.id, p),
      route.route.weights = make(op.route.route.weights.id, p);
      MoeGateUp& experts = mine.experts;
      experts.gate = rows(op.experts.gate, part), experts.up = rows(op.experts.up, part);
      if (op.experts.gate_bias) {
        experts.gate_bias = columns(op.experts.gate_bias, part);
        experts.up_bias = columns(op.experts.up_bias, part);
      }
      experts.gate_scale = whole(op.experts.gate_scale), experts.up_scale = whole(op.experts.up_scale);
      experts.out = make(op.experts.out.id, p);
      if (op.experts.shared_gate) {
        const Range shared = range(op.experts.shared_out.id, p);
        const bool has = shared.count() > 0;
        experts.shared_gate = has ? rows(op.experts.shared_gate, shared) : Read{};
        experts.shared_up = has ? rows(op.experts.shared_up, shared) : Read{};
        experts.shared_out = has ? make(op.experts.shared_out.id, p) : Write{};
        if (!has) mine.shared_router = {};
      }
      b_.emit(mine);
    });
  }

  void operator()(const MoeDownAdd& op) {
    std::vector<Read> partials;
    each_holder(op.in.id, [&](int32_t p, Range part) {
      MoeDownAdd mine{.in = {at(op.in.id, p)},
                      .ids = {at(op.ids.id, p)},
                      .weights = {at(op.weights.id, p)},
                      .down = columns(op.down, part),
                      .down_scale = whole(op.down_scale),
                      .residual = once(op.residual, partials, p)};
      if (partials.empty()) mine.down_bias = whole(op.down_bias);  // likewise
      if (op.shared_in && range(op.shared_in.id, p).count() > 0) {
        mine.shared_in.id = at(op.shared_in.id, p);
        mine.shared_down = columns(op.shared_down, range(op.shared_in.id, p));
      }
      partials.push_back({b_.moe_down_add(mine)});
    });
    add_up(std::move(partials), op.out);
  }

  void operator()(const GatherRows& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(GatherRows{{at(op.in.id, p)}, make(op.out.id, p)});
    });
  }

  void operator()(const NormMatmul& op) {
    if (op.b && cuts_.kv.empty() && !is_cut(op.out_b.id)) refuse();
    each_holder(op.out_a.id, [&](int32_t p, Range part) {
      NormMatmul mine{.in = {at(op.in.id, p)},
                      .norm = whole(op.norm),
                      .a = rows(op.a, part),
                      .out_a = make(op.out_a.id, p),
                      .epsilon = op.epsilon};
      if (op.b) mine.b = rows(op.b, range(op.out_b.id, p)), mine.out_b = make(op.out_b.id, p);
      if (op.c) mine.c = rows(op.c, range(op.out_c.id, p)), mine.out_c = make(op.out_c.id, p);
      if (op.d) mine.d = rows(op.d, range(op.out_d.id, p)), mine.out_d = make(op.out_d.id, p);
      b_.emit(mine);
    });
  }

  // --- grouped attention ---
  void operator()(const RmsNorm& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(RmsNorm{{at(op.in.id, p)}, whole(op.weight), make(op.out.id, p), op.epsilon});
    });
  }
  void operator()(const Matmul& op) {
    if (is_cut(op.in.id)) refuse();
    each_holder(op.out.id, [&](int32_t p, Range part) {
      b_.emit(Matmul{{at(op.in.id, p)}, rows(op.weight, part), make(op.out.id, p)});
    });
  }
  void operator()(const AddBias& op) {
    each_holder(op.out.id, [&](int32_t p, Range part) {
      b_.emit(AddBias{{at(op.in.id, p)}, columns(op.bias, part), make(op.out.id, p)});
    });
  }
  void operator()(const Scale& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(Scale{{at(op.in.id, p)}, whole(op.scale), {}, make(op.out.id, p)});
    });
  }
  void operator()(const SiluMul& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(SiluMul{{at(op.gate.id, p)}, {at(op.up.id, p)}, make(op.out.id, p), op.form});
    });
  }
  void operator()(const Add& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(Add{{at(op.a.id, p)}, {at(op.b.id, p)}, make(op.out.id, p)});
    });
  }
  void operator()(const Rope& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      b_.emit(Rope{{at(op.in.id, p)}, make(op.out.id, p), op.params, whole(op.factors), op.passed});
    });
  }
  void operator()(const KvAppend& op) {
    if (cuts_.kv.empty()) refuse();  // of the parts of latent attention, which is cut whole
    each_holder(op.latent.id, [&](int32_t p, Range) {
      const TensorId keys = b_.flatten(at(op.latent.id, p)), values = b_.flatten(at(op.rope_key.id, p));
      b_.emit(KvAppend{{keys}, {values}, {grouped_cache(op.cache.id, p)}, op.cache_layer});
    });
  }
  void operator()(const GqaAttend& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      GqaAttend mine = op;
      GqaQuery& q = mine.query;
      q.q.id = at(q.q.id, p), q.k.id = at(q.k.id, p), q.v.id = b_.flatten(at(q.v.id, p));
      const int64_t group = in_[op.query.q.id].heads() / op.kv_heads(in_), key = in_[op.query.q.id].columns();
      q.q_bias = of_groups(q.q_bias, p, group * key), q.k_bias = of_groups(q.k_bias, p, key);
      q.v_bias = of_groups(q.v_bias, p, in_[op.out.id].columns());
      q.q_norm = whole(q.q_norm), q.k_norm = whole(q.k_norm), q.factors = whole(q.factors);
      q.cache.id = grouped_cache(q.cache.id, p);
      mine.sinks = of_groups(op.sinks, p, group);
      if (op.gate) mine.gate.id = at(op.gate.id, p);
      mine.out = make(op.out.id, p);
      b_.emit(mine);
    });
  }
  void operator()(const Attend& op) {
    each_holder(op.out.id, [&](int32_t p, Range) {
      Attend mine = op;
      mine.q.id = at(op.q.id, p);
      mine.cache.id = grouped_cache(op.cache.id, p);
      mine.out = make(op.out.id, p);
      mine.sinks = of_groups(op.sinks, p, in_[op.q.id].heads() / op.kv_heads);
      mine.kv_heads = cuts_.kv[static_cast<size_t>(p)].count();
      b_.emit(mine);
    });
  }

  template <typename Other>
  void operator()(const Other&) {
    refuse();
  }

 private:
  [[noreturn]] void refuse() const { fail("{} cannot be cut into places", in_.op_name(*op_)); }

  bool is_cut(TensorId id) const { return cuts_.activations.contains(in_.storage(id)); }
  /// What a place has of a row's columns: its part, or all of them.
  Range range(TensorId id, int32_t place) const {
    const auto found = cuts_.activations.find(in_.storage(id));
    return found == cuts_.activations.end() ? Range{0, row_columns(in_[id])}
                                            : found->second[static_cast<size_t>(place)];
  }
  std::vector<int32_t> holders(TensorId id) const {
    std::vector<int32_t> list;
    std::ranges::copy_if(places_, std::back_inserter(list),
                         [&](int32_t p) { return range(id, p).count() > 0; });
    return list;
  }
  /// Emits for each place that has some of this activation.
  template <typename F>
  void each_holder(TensorId id, F&& emit) {
    for (const int32_t p : holders(id)) {
      b_.set_place(p);
      emit(p, range(id, p));
    }
  }

  TensorId at(TensorId id, int32_t place) const { return at_.at({in_.storage(id), place}); }
  void set(TensorId id, int32_t place, TensorId there) { at_[{in_.storage(id), place}] = there; }
  /// A new activation with the shape of one that is not cut, or of which a place has all it needs.
  TensorId like(const char* name, TensorId id) {
    const Tensor tensor = in_[id];
    return b_.activation(name, tensor.shape[0], tensor.heads(), tensor.columns());
  }
  /// What a place has of an activation: some of its heads, or of its columns (of each head, where these are
  /// experts).
  Write make(TensorId id, int32_t place) {
    const Tensor tensor = in_[id];
    const int64_t count = range(id, place).count();
    int64_t heads = tensor.heads(), columns = tensor.columns();
    if (is_cut(id)) {
      const bool by_heads = heads > 1 && row_columns(tensor) == total(id);
      (by_heads ? heads : columns) = by_heads ? count / columns : count;
    }
    const TensorId there = b_.activation(tensor.name, tensor.shape[0], heads, columns, tensor.type);
    set(id, place, there);
    return {there};
  }
  /// Columns that all places have together.
  int64_t total(TensorId id) const { return cuts_.activations.at(in_.storage(id)).back().last; }

  // A weight at the builder's place: a view of it, or of a part.
  Read part_of(Read weight, Range matrices, Range rows, Range columns) {
    return {b_.weight_part(weight.id, matrices, rows, columns)};
  }
  Range all(Read weight, size_t dimension) const { return {0, in_[weight.id].shape[dimension]}; }
  Read whole(Read w) { return w ? part_of(w, all(w, 0), all(w, 1), all(w, 2)) : w; }
  Read matrices(Read w, Range part) { return part_of(w, part, all(w, 1), all(w, 2)); }
  Read rows(Read w, Range part) { return part_of(w, all(w, 0), part, all(w, 2)); }
  Read columns(Read w, Range part) { return part_of(w, all(w, 0), all(w, 1), part); }

  /// A place's cache in place of this one, with so many columns a row.
  TensorId cache_at(TensorId whole, int32_t place, int64_t columns) {
    const auto [found, is_new] = at_.try_emplace({whole, place}, kNoTensor);
    if (!is_new) return found->second;
    Tensor cache = in_[whole];
    cache.shape[2] = cache.stride[1] = columns;
    cache.stride[0] = cache.shape[1] * columns;
    cache.place = place;
    return found->second = out_.add(std::move(cache));
  }
  TensorId grouped_cache(TensorId whole, int32_t place) {
    const Cut& kv = cuts_.kv;
    const int64_t each = in_[whole].columns() / kv.back().last;
    return cache_at(whole, place, each * kv[static_cast<size_t>(place)].count());
  }

  /// The part of a vector that a place's groups of heads have, each so many columns.
  Read of_groups(Read vector, int32_t place, int64_t each) {
    const Range kv = cuts_.kv[static_cast<size_t>(place)];
    return vector ? columns(vector, {kv.first * each, kv.last * each}) : vector;
  }

  /// The residual is a part of what the first place brings; so is a bias.
  Read once(Read residual, const std::vector<Read>& partials, int32_t place) const {
    return residual && partials.empty() ? Read{at(residual.id, place)} : Read{};
  }

  /// The sum of what places have each a part of, at every place.
  void add_up(std::vector<Read> partials, Write out) {
    if (places_.size() == 1) return set(out.id, places_[0], partials[0].id);
    AllReduce reduce{std::move(partials), {}};
    for (const int32_t p : places_) {
      b_.set_place(p);
      reduce.out.push_back(make(out.id, p));
    }
    b_.emit(reduce);
  }

  const Program& in_;
  Cuts cuts_;
  Tables tables_;
  std::vector<int32_t> places_;  // that have something to do
  Program out_;
  Builder b_{out_};
  const Op* op_ = nullptr;
  std::map<std::pair<TensorId, int32_t>, TensorId> at_;  // by storage (or cache) and place
};

}  // namespace

Program split(const Program& program, std::span<const double> shares, Tables tables) {
  if (shares.empty() || shares.size() > kMostPlaces)
    fail("{} places: expected 1 to {}", shares.size(), kMostPlaces);
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  const auto is_share = [](double share) { return share >= 0; };
  if (!std::ranges::all_of(shares, is_share) || !(total > 0) || !std::isfinite(total))
    fail("shares of places: expected numbers that are not negative, and a sum above 0");
  return Splitter(program, shares, tables).run();
}

}  // namespace sluice::program
