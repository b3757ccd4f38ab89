// A program of one place becomes one of several that have whole layers in turn. First layers get their
// places, by the bytes of their weights; then ops follow their layers, and what an op reads of an earlier
// place is copied to its own.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <type_traits>

#include "base/error.h"
#include "program/builder.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::program {
namespace {

/// How many layers each place gets, one behind the other: the place with most bytes has as few as can be, and
/// of such deals an even one is taken. The first place has `first_bytes` besides.
std::vector<size_t> deal_bytes(const std::vector<int64_t>& layer_bytes, int64_t first_bytes, size_t places) {
  // Of the first layers, dealt to the first places: the most bytes of a place, and the sum of squares.
  using Worth = std::pair<double, double>;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const size_t layers = layer_bytes.size();
  std::vector best(places + 1, std::vector<Worth>(layers + 1, {kNever, kNever}));
  std::vector taken(places + 1, std::vector<size_t>(layers + 1, 0));
  best[0][0] = {0, 0};
  for (size_t p = 1; p <= places; ++p) {
    for (size_t end = 0; end <= layers; ++end) {
      auto bytes = static_cast<double>(p == 1 ? first_bytes : 0);
      for (size_t count = 0; count <= end; ++count) {
        if (count > 0) bytes += static_cast<double>(layer_bytes[end - count]);
        const auto& [most, squares] = best[p - 1][end - count];
        const Worth worth{std::max(most, bytes), squares + bytes * bytes};
        if (worth < best[p][end]) best[p][end] = worth, taken[p][end] = count;
      }
    }
  }
  std::vector<size_t> counts(places);
  for (size_t p = places, end = layers; p > 0; end -= taken[p][end], --p) counts[p - 1] = taken[p][end];
  return counts;
}

/// Calls back with each operand's id, which may be changed, and whether it is written.
template <typename F>
void each_operand(OpArgs& args, F&& f) {
  std::visit(
      [&f](auto& op) {
        op.operands([&f](const char*, const auto& operand) {
          if (operand.id == kNoTensor) return;
          // The op is not const: operands() reads it for everybody else.
          f(const_cast<TensorId&>(operand.id), std::is_same_v<std::decay_t<decltype(operand)>, Write>);
        });
      },
      args);
}

/// Where an op says which layer of its caches it means: once, or in each of its parts the same; none: it has
/// no cache.
std::vector<int32_t*> cache_layers_of(OpArgs& args) {
  return std::visit(
      [](auto& op) -> std::vector<int32_t*> {
        if constexpr (requires { op.cache_layer; }) {
          return {&op.cache_layer};
        } else if constexpr (requires { op.query.cache_layer; }) {
          return {&op.query.cache_layer};
        } else if constexpr (requires { op.heads.query.cache_layer; }) {
          return {&op.heads.query.cache_layer};
        } else if constexpr (requires { op.attend.cache_layer; }) {
          return {&op.attend.cache_layer};
        } else if constexpr (requires { op.conv.cache_layer, op.rule.cache_layer; }) {
          return {&op.conv.cache_layer, &op.rule.cache_layer};
        } else {
          return {};
        }
      },
      args);
}

class Dealer {
 public:
  Dealer(const Program& program, size_t places) : in_(program), places_(places), ops_(program.ops()) {
    place_ops();
    place_tensors();
  }

  Program run() {
    for (size_t i = 0; i < ops_.size(); ++i) {
      Op& op = ops_[i];
      b_.set_layer(op.layer);
      move_layer(op);
      each_operand(op.args, [&](TensorId& id, bool) { id = at(id, op.place); });
      out_.add(op);
    }
    b_.set_layer(-1);
    if (in_.output() != kNoTensor) out_.set_output(at(in_.output(), 0));
    return std::move(out_);
  }

 private:
  /// Layers by the bytes of their weights. What stands outside of layers is the first place's, which steps
  /// and gives logits; but rows are gathered where they are, so that no more of them are copied.
  void place_ops() {
    std::vector<int32_t> layers;
    std::map<int32_t, int64_t> bytes;
    std::set<TensorId> counted;
    for (Op& op : ops_) {
      if (op.layer >= 0 && !bytes.contains(op.layer)) layers.push_back(op.layer);
      int64_t& sum = bytes[op.layer];
      each_operand(op.args, [&](TensorId& id, bool) {
        const TensorId storage = in_.storage(id);
        const Tensor& weight = in_[storage];
        if (weight.kind != Kind::Weight || !counted.insert(storage).second) return;
        sum += quant::bytes_of(quant::type_info(weight.type),
                               weight.shape[0] * weight.shape[1] * weight.shape[2]);
      });
    }
    std::vector<int64_t> layer_bytes;
    for (const int32_t layer : layers) layer_bytes.push_back(bytes[layer]);
    std::map<int32_t, int32_t> place_of{{-1, 0}};
    auto next = layers.begin();
    const std::vector<size_t> counts = deal_bytes(layer_bytes, bytes[-1], places_);
    for (size_t p = 0; p < counts.size(); ++p) {
      for (size_t k = 0; k < counts[p]; ++k) place_of[*next++] = static_cast<int32_t>(p);
    }
    int32_t before = 0;
    for (Op& op : ops_) {
      const bool stays = op.layer < 0 && std::holds_alternative<GatherRows>(op.args);
      op.place = before = stays ? before : place_of[op.layer];
    }
  }

  /// Activations are where they are written, weights where they are read first. A cache is cut by layers:
  /// each place has one of those that its ops mean.
  void place_tensors() {
    std::vector<int32_t> place(in_.tensors().size(), -1);
    std::map<std::pair<TensorId, int32_t>, int32_t> owner;  // by cache and its layer
    for (Op& op : ops_) {
      const std::vector<int32_t*> layers = cache_layers_of(op.args);
      each_operand(op.args, [&](TensorId& id, bool) {
        const TensorId storage = in_.storage(id);
        int32_t& there = place[static_cast<size_t>(storage)];
        if (!is_kept(in_[id])) {
          if (there < 0) there = op.place;
          place[static_cast<size_t>(id)] = there;
          return;
        }
        const bool known =
            !layers.empty() && owner.try_emplace({id, *layers[0]}, op.place).first->second == op.place;
        if (!known) fail("{}: its layer of the cache is at several places", in_.op_name(op));
      });
    }
    for (size_t id = 0; id < place.size(); ++id) {
      Tensor tensor = in_.tensors()[id];
      tensor.place = std::max(0, place[id]);
      out_.add(is_kept(tensor) ? by_name_alone(tensor) : tensor);
    }
    for (int32_t p = 0; p < static_cast<int32_t>(places_); ++p) {
      for (const TensorId cache : in_.caches()) {
        int32_t count = 0;
        for (const auto& [key, where] : owner) {  // in the order of layers
          if (key.first == cache && where == p) cache_layers_[key] = count++;
        }
        if (count == 0) continue;
        Tensor mine = in_[cache];
        mine.shape[0] = count;
        mine.place = p;
        at_[{cache, p}] = out_.add(std::move(mine));
      }
    }
  }

  void move_layer(Op& op) const {
    const std::vector<int32_t*> layers = cache_layers_of(op.args);
    if (layers.empty()) return;
    const int32_t layer = *layers[0];
    int32_t moved = layer;
    each_operand(op.args, [&](const TensorId& id, bool) {
      if (is_kept(in_[id])) moved = cache_layers_.at({id, layer});
    });
    for (int32_t* const one : layers) *one = moved;
  }

  /// What a place reads in place of a tensor: itself where it is there, or a copy.
  TensorId at(TensorId id, int32_t place) {
    const bool kept = is_kept(in_[id]);
    if (!kept && out_[id].place == place) return id;
    if (const auto found = at_.find({id, place}); found != at_.end()) return found->second;
    b_.set_place(place);
    const Tensor tensor = in_[id];
    TensorId there = kNoTensor;
    if (tensor.kind == Kind::Weight) {
      there = b_.weight_part(id, {0, tensor.shape[0]}, {0, tensor.shape[1]}, {0, tensor.shape[2]});
    } else if (tensor.base != kNoTensor) {
      Tensor view = tensor;
      view.base = at(in_.storage(id), place);
      view.place = place;
      there = out_.add(std::move(view));
    } else {
      there = b_.activation(tensor.name, tensor.shape[0], tensor.heads(), tensor.columns(), tensor.type);
      b_.emit(Copy{{id}, {there}});
    }
    return at_[{id, place}] = there;
  }

  const Program& in_;
  size_t places_;
  std::vector<Op> ops_;
  Program out_;
  Builder b_{out_};
  std::map<std::pair<TensorId, int32_t>, TensorId> at_;           // by id and place
  std::map<std::pair<TensorId, int32_t>, int32_t> cache_layers_;  // by cache and its layer, at its place
};

}  // namespace

Program deal_layers(const Program& program, size_t places) {
  if (places == 0 || places > kMostPlaces) fail("{} places: expected 1 to {}", places, kMostPlaces);
  return Dealer(program, places).run();
}

}  // namespace sluice::program
