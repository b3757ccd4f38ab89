#include "profile/op_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "profile/statistics.h"
#include "profile/timeline.h"
#include "program/op_info.h"

namespace sluice::profile {
namespace {

using namespace program;

constexpr int kWarmCopies = 8;  // one after the other, so that handing a step over weighs little
constexpr int kMostCopies = 1 << 14;
constexpr int kLeastRounds = 5, kMostRounds = 100'000;

/// The op with every operand that is there replaced, and its cache layer where it has one.
Op with_operands(Op op, int32_t cache_layer, const std::function<TensorId(TensorId)>& replaced) {
  std::visit(
      [&](auto& args) {
        args.operands([&](const char*, const auto& operand) {
          // The list of operands is made for readers; this op is ours.
          if (operand.id != kNoTensor) const_cast<TensorId&>(operand.id) = replaced(operand.id);
        });
        if constexpr (requires { args.cache_layer; }) args.cache_layer = cache_layer;
      },
      op.args);
  return op;
}

struct Uses {
  std::vector<TensorId> weights, read, written;  // storages; each once
  TensorId cache = kNoTensor;                    // of any kind
};

Uses uses_of(const Program& program, const Op& op) {
  Uses uses;
  const auto once = [](std::vector<TensorId>& list, TensorId id) {
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  };
  info(op).operands(op, [&](const char*, TensorId id, bool written) {
    const TensorId storage = program.storage(id);
    switch (program[storage].kind) {
      case Kind::Weight: once(uses.weights, storage); break;
      case Kind::Cache:
      case Kind::State: uses.cache = storage; break;
      case Kind::Activation: once(written ? uses.written : uses.read, storage); break;
    }
  });
  return uses;
}

double bytes_of_tensor(const Program& program, TensorId id) {
  const auto& shape = program[id].shape;
  return program.bytes(
      id, static_cast<double>(shape[0]) * static_cast<double>(shape[1]) * static_cast<double>(shape[2]));
}

std::string dimensions(const std::array<int64_t, 3>& shape, size_t first) {
  while (first < 2 && shape[first] == 1) ++first;
  std::string text;
  for (size_t i = first; i < 3; ++i) text += fmt::format("{}{}", text.empty() ? "" : "x", shape[i]);
  return text;
}

}  // namespace

double weight_bytes(const Program& program, const Op& op) {
  double sum = 0;
  for (const TensorId id : uses_of(program, op).weights) sum += bytes_of_tensor(program, id);
  return sum;
}

std::string shape_text(const Program& program, const Op& op) {
  std::vector<std::pair<std::string, int>> parts;  // with how many of them follow each other
  const auto add = [&](const std::string& part) {
    if (!parts.empty() && parts.back().first == part) {
      ++parts.back().second;
    } else {
      parts.emplace_back(part, 1);
    }
  };
  info(op).operands(op, [&](const char*, TensorId id, bool) {
    const Tensor& tensor = program[id];
    if (tensor.kind == Kind::Weight)
      add(dimensions(tensor.shape, 0) + " " + quant::type_info(tensor.type).name);
  });
  if (parts.empty()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind == Kind::Activation) add(dimensions(program[id].shape, 1));
    });
  }
  std::string text;
  for (const auto& [part, count] : parts) {
    text += text.empty() ? "" : " + ";
    text += count > 1 ? fmt::format("{} x {}", count, part) : part;
  }
  return text;
}

OpBench::OpBench(Backend& backend, const Program& program, const Op& op, const WeightBytes& weights,
                 const OpBenchOptions& options)
    : backend_(backend), options_(options) {
  copies_ = copies_for(program, op);
  copy_op(program, op, weights);
  const int64_t context = std::max(options_.context, options_.rows);
  pages_of_step_ = (context + kPageRows - 1) / kPageRows;
  pages_ = pages_of_step_;
  const TensorId cache = uses_of(program, op).cache;
  if (options_.rotate_bytes > 0 && cache != kNoTensor && program[cache].kind == Kind::Cache) {
    const auto page = static_cast<double>(cache_bytes(program[cache], {.pages = 1}));
    pages_ = std::max(pages_, static_cast<int64_t>(std::ceil(options_.rotate_bytes / page)) + pages_of_step_);
    resident_bytes_ = page * static_cast<double>(pages_);
  } else if (options_.rotate_bytes > 0) {
    resident_bytes_ = copies_ * weight_bytes(program, op);
  }
  executable_ = backend.compile(
      part_, weights_,
      {.max_rows = options_.rows, .max_outputs = has_outputs_ ? options_.rows : 1, .cache_pages = pages_});
  for (int64_t r = 0; r < options_.rows; ++r) {
    sequences_.push_back(0);
    positions_.push_back(static_cast<int32_t>(context - options_.rows + r));
    if (has_outputs_) outputs_.push_back(static_cast<int32_t>(r));
  }
  tokens_.resize(static_cast<size_t>(options_.rows));
  slots_.resize(static_cast<size_t>(options_.rows));
  page_table_.resize(static_cast<size_t>(pages_of_step_));
  fill_inputs();
}

int OpBench::copies_for(const Program& program, const Op& op) const {
  const Uses uses = uses_of(program, op);
  if (uses.cache != kNoTensor) {  // all layers of the cache, in cold rounds
    return options_.rotate_bytes > 0 ? static_cast<int>(program[uses.cache].shape[0]) : kWarmCopies;
  }
  const double bytes = weight_bytes(program, op);
  if (options_.rotate_bytes <= 0 || bytes <= 0) return kWarmCopies;
  return static_cast<int>(std::clamp(std::ceil(options_.rotate_bytes / bytes), 1.0, double{kMostCopies}));
}

/// Tensors that the op uses, once; its weights anew for each copy where copies are cold.
void OpBench::copy_op(const Program& whole, const Op& op, const WeightBytes& weights) {
  const Uses uses = uses_of(whole, op);
  const bool own_weights = options_.rotate_bytes > 0;
  std::map<TensorId, TensorId> ids;
  const std::function<TensorId(TensorId)> copy = [&](TensorId id) {
    if (const auto found = ids.find(id); found != ids.end()) return found->second;
    Tensor tensor = whole[id];
    if (tensor.base != kNoTensor) tensor.base = copy(tensor.base);
    const TensorId made = part_.add(tensor);
    weights_.resize(static_cast<size_t>(made) + 1);
    if (tensor.kind == Kind::Weight && tensor.base == kNoTensor)
      weights_[static_cast<size_t>(made)] = weights[static_cast<size_t>(id)];
    ids[id] = made;
    return made;
  };
  const auto layers = uses.cache == kNoTensor ? 1 : static_cast<int32_t>(whole[uses.cache].shape[0]);
  for (int i = 0; i < copies_; ++i) {
    if (own_weights)
      std::erase_if(ids, [&](const auto& pair) { return whole[pair.first].kind == Kind::Weight; });
    part_.add(with_operands(op, i % layers, copy));
  }
  for (const TensorId id : uses.read) {
    if (std::find(uses.written.begin(), uses.written.end(), id) == uses.written.end())
      inputs_.push_back(ids.at(id));
  }
  std::vector<TensorId> all = uses.read;
  all.insert(all.end(), uses.written.begin(), uses.written.end());  // a result where there is one
  for (const TensorId id : all) {
    has_outputs_ |= whole[id].shape[0] == kOutputRows;
    if (whole[id].type == quant::Type::F32) part_.set_output(ids.at(id));
  }
  // Which experts are selected is an input of the ops that multiply with them.
  for (const TensorId id : uses.read) {
    if (whole[id].type == quant::Type::I32) ids_ = ids.at(id);
  }
  for (const TensorId id : uses.weights) experts_ = std::max(experts_, whole[id].shape[0]);
  expert_order_.resize(static_cast<size_t>(experts_));
  std::iota(expert_order_.begin(), expert_order_.end(), 0);
  std::shuffle(expert_order_.begin(), expert_order_.end(), random_);
}

void OpBench::fill_inputs() {
  std::normal_distribution<float> normal;
  for (const TensorId id : inputs_) {
    if (id == ids_) continue;
    const Tensor& tensor = part_[id];
    values_.resize(static_cast<size_t>(options_.rows * tensor.heads() * tensor.columns()));
    for (float& value : values_) value = normal(random_);
    executable_->poke(id, options_.rows, values_);
  }
}

/// The first row selects the experts that come next in a shuffled order, so that rounds visit them all; the
/// others select at random. A row's experts are distinct.
void OpBench::set_ids() {
  const int64_t used = part_[ids_].columns();
  values_.clear();
  std::set<int32_t> distinct;
  for (int64_t r = 0; r < options_.rows; ++r) {
    const int64_t first = r == 0 && options_.rotate_bytes > 0 ? rounds_ * used
                          : r == 0                            ? 0
                                                              : static_cast<int64_t>(random_() >> 1);
    if (r > 0) std::shuffle(expert_order_.begin(), expert_order_.end(), random_);
    for (int64_t k = 0; k < used; ++k) {
      const int32_t id = expert_order_[static_cast<size_t>((first % experts_ + k) % experts_)];
      distinct.insert(id);
      values_.push_back(static_cast<float>(id));
    }
  }
  distinct_sum_ += static_cast<double>(distinct.size());
  executable_->poke(ids_, options_.rows, values_);
}

void OpBench::set_step() {
  const int64_t first_page = rounds_ * pages_of_step_ % (pages_ - pages_of_step_ + 1);
  for (int64_t p = 0; p < pages_of_step_; ++p)
    page_table_[static_cast<size_t>(p)] = static_cast<int32_t>(first_page + p);
  for (size_t r = 0; r < tokens_.size(); ++r) {
    // Tokens only choose rows of the embedding, which every vocabulary has some hundreds of.
    tokens_[r] = static_cast<int32_t>(random_() % 256);
    slots_[r] =
        page_table_[static_cast<size_t>(positions_[r] / kPageRows)] * kPageRows + positions_[r] % kPageRows;
  }
}

double OpBench::round() {
  set_step();
  if (ids_ != kNoTensor) set_ids();
  ++rounds_;
  constexpr StateSlots kState{};
  const StepInput input{tokens_,  positions_,  sequences_,
                        slots_,   page_table_, static_cast<int32_t>(pages_of_step_),
                        outputs_, {&kState, 1}};
  run_step(*executable_, {.input = input, .timed = true});
  executable_->fetch_times(times_);
  const StepParts parts = take_apart(times_, executable_->program().ops().size());
  const int64_t ns = std::accumulate(parts.op_ns.begin(), parts.op_ns.end(), int64_t{0}) +
                     std::accumulate(parts.gap_ns.begin() + 1, parts.gap_ns.end() - 1, int64_t{0});
  return static_cast<double>(ns) / copies_;
}

Cost OpBench::cost() const {
  const auto rows = static_cast<double>(options_.rows);
  const auto last = static_cast<double>(std::max(options_.context, options_.rows));
  StepShape shape{.rows = rows,
                  .outputs = rows,
                  .context = last - (rows - 1) / 2,
                  .cache_rows = last,
                  .selected = rounds_ > 0 ? distinct_sum_ / static_cast<double>(rounds_) : 0};
  const Op& op = part_.ops().front();
  return info(op).cost(part_, op, shape);
}

OpTiming OpBench::measure() {
  round();
  // All experts, all pages: once round.
  const int64_t used = ids_ == kNoTensor ? 1 : part_[ids_].columns();
  const int64_t turn = options_.rotate_bytes <= 0 ? 1
                       : ids_ != kNoTensor        ? experts_ / used
                                                  : pages_ / pages_of_step_;
  const int64_t least = std::max<int64_t>(kLeastRounds, turn), began = now_ns();
  std::vector<double> us;
  while (static_cast<int64_t>(us.size()) < least ||
         (1e-9 * static_cast<double>(now_ns() - began) < options_.seconds && us.size() < kMostRounds)) {
    us.push_back(1e-3 * round());
  }
  OpTiming timing;
  timing.us = median(us);
  timing.min_us = *std::min_element(us.begin(), us.end());
  timing.cost = cost();
  timing.limit_us = 1e6 * backend_.peaks().limit_seconds(timing.cost);
  timing.resident_bytes = resident_bytes_;
  timing.rounds = static_cast<int>(us.size());
  timing.kernel = executable_->bound_for(options_.rows, std::max(options_.context, options_.rows)).front();
  return timing;
}

}  // namespace sluice::profile
