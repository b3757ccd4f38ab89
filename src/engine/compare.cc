#include "engine/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "program/op_info.h"
#include "program/tolerance.h"

namespace sluice::engine {
namespace {

using namespace program;

/// What a shaken input is off by: a rounding to binary16 at most.
constexpr float kShake = 0x1p-12f;

/// All tokens as one sequence from position 0 on, every row's logits wanted.
Batch one_step(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  Batch batch(count, 1, static_cast<int32_t>(KvPool::pages_for(count)));
  std::vector<int32_t> pages(static_cast<size_t>(KvPool::pages_for(count)));
  std::iota(pages.begin(), pages.end(), 0);
  batch.set_pages(0, pages);
  for (int64_t i = 0; i < count; ++i)
    batch.add(tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, true);
  return batch;
}

CompileOptions options_for(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  return {.max_rows = count, .max_outputs = count, .cache_pages = KvPool::pages_for(count)};
}

/// The activations and caches among an op's operands.
struct Operands {
  std::vector<TensorId> read, written;
  std::vector<TensorId> caches_read, caches_written;
};

Operands operands_of(const Program& program, const Op& op) {
  Operands operands;
  info(op).operands(op, [&](const char*, TensorId id, bool written) {
    const Kind kind = program[id].kind;
    if (kind == Kind::Cache) (written ? operands.caches_written : operands.caches_read).push_back(id);
    if (kind == Kind::Activation) (written ? operands.written : operands.read).push_back(id);
  });
  return operands;
}

/// A Program of these ops alone; tensors keep their ids.
Program program_of(const Program& whole, const std::vector<const Op*>& ops) {
  Program part;
  for (const Tensor& tensor : whole.tensors()) part.add(tensor);
  for (const Op* op : ops) {
    part.add(*op);
    for (const TensorId id : operands_of(whole, *op).written) {
      if (whole[id].type == quant::Type::F32) part.set_output(id);  // a step copies some result out
    }
  }
  return part;
}

/// The distinct kernels that an executable runs for so many tokens, in order.
std::string kernels_of(const Executable& executable, int64_t rows) {
  std::vector<std::string> names;
  for (const BoundKernel& kernel : executable.bound_for(rows, rows)) {
    if (std::find(names.begin(), names.end(), kernel.name) == names.end()) names.push_back(kernel.name);
  }
  return fmt::format("{}", fmt::join(names, " + "));
}

class Lockstep {
 public:
  Lockstep(const Program& program, const WeightBytes& weights, Backend& a, Backend& b,
           std::span<const int32_t> tokens)
      : program_(legalize(program, b, static_cast<int64_t>(tokens.size()))),
        weights_(weights),
        a_(a),
        b_(b),
        options_(options_for(tokens)),
        batch_(one_step(tokens)) {}

  void walk(const std::function<void(const OpDifference&)>& each, int64_t layers) {
    for (const Op& op : program_.ops()) {
      if (op.layer >= layers) return;
      const Operands operands = operands_of(program_, op);
      if (operands.written.empty()) continue;
      // What reads a cache finds in it what the same layer's ops wrote there.
      std::vector<const Op*> ops;
      const auto writes = [&](TensorId id, const Op& writer) {
        const std::vector<TensorId> written = operands_of(program_, writer).caches_written;
        return std::find(written.begin(), written.end(), id) != written.end();
      };
      for (const Op& writer : program_.ops()) {
        if (&writer == &op) break;
        const bool is_read = std::any_of(operands.caches_read.begin(), operands.caches_read.end(),
                                         [&](TensorId id) { return writes(id, writer); });
        if (is_read && writer.layer == op.layer) ops.push_back(&writer);
      }
      ops.push_back(&op);
      compare(ops, operands.written, each);
    }
  }

 private:
  int64_t rows_of(TensorId id) const {
    return Program::rows(program_[id], options_.max_rows, options_.max_outputs);
  }
  size_t elements(TensorId id) const {
    return static_cast<size_t>(rows_of(id) * program_[id].heads() * program_[id].columns());
  }

  /// Gives the ops their inputs, and results of NaN, so that an element that nobody writes shows; runs them.
  /// shaken: every input is off by kShake of itself, up or down.
  void run(Executable& executable, const std::vector<const Op*>& ops, const std::vector<TensorId>& results,
           bool shaken = false) {
    // Results first: where ops run as their expansion, one may lie where an input does.
    for (const TensorId id : results) {
      const bool number = program_[id].type == quant::Type::F32;
      const float nothing = number ? std::numeric_limits<float>::quiet_NaN() : -1.0f;
      executable.poke(id, rows_of(id), std::vector<float>(elements(id), nothing));
    }
    std::minstd_rand coin;  // the same on every machine
    for (const Op* op : ops) {
      for (const TensorId id : operands_of(program_, *op).read) {
        std::vector<float> values = known(id);
        if (program_[id].type == quant::Type::F32) {
          round_to_eight_bits(values, program_[id].columns());
          for (float& value : values) {
            if (shaken) value += (coin() > coin.max() / 2 ? kShake : -kShake) * value;
          }
        }
        executable.poke(id, rows_of(id), values);
      }
    }
    run_step(executable, batch_.step());
  }

  /// What the judge computed for an activation, gathered out of the tensor that holds it.
  std::vector<float> known(TensorId id) const {
    const Tensor& view = program_[id];
    const Tensor& whole = program_[program_.storage(id)];
    const std::vector<float>& values = values_.at(program_.storage(id));
    std::vector<float> out;
    out.reserve(elements(id));
    for (int64_t r = 0; r < rows_of(id); ++r) {
      for (int64_t h = 0; h < view.heads(); ++h) {
        const auto* from = values.data() + r * whole.stride[0] + h * whole.stride[1] + view.offset;
        out.insert(out.end(), from, from + view.columns());
      }
    }
    return out;
  }

  /// Keeps a result for the ops that read it.
  void keep(TensorId id, const std::vector<float>& result) {
    const Tensor& view = program_[id];
    const TensorId storage = program_.storage(id);
    const Tensor& whole = program_[storage];
    std::vector<float>& values = values_[storage];
    values.resize(elements(storage), std::numeric_limits<float>::quiet_NaN());
    const float* from = result.data();
    for (int64_t r = 0; r < rows_of(id); ++r) {
      for (int64_t h = 0; h < view.heads(); ++h, from += view.columns())
        std::copy_n(from, view.columns(),
                    values.data() + r * whole.stride[0] + h * whole.stride[1] + view.offset);
    }
  }

  using Results = std::vector<std::vector<float>>;  // of an op, in their order
  Results results_of(Executable& executable, const std::vector<TensorId>& ids) const {
    Results results;
    for (const TensorId id : ids) executable.peek(id, rows_of(id), results.emplace_back(elements(id)));
    return results;
  }

  void compare(const std::vector<const Op*>& ops, const std::vector<TensorId>& results,
               const std::function<void(const OpDifference&)>& each) {
    const Program part = program_of(program_, ops);
    const auto on_a = a_.compile(part, weights_, options_), on_b = b_.compile(part, weights_, options_);
    run(*on_a, ops, results);
    run(*on_b, ops, results);
    const Results by_a = results_of(*on_a, results), by_b = results_of(*on_b, results);
    std::optional<Results> shaken;
    for (size_t i = 0; i < results.size(); ++i) {
      const TensorId id = results[i];
      OpDifference difference{.op = program_.op_name(*ops.back()),
                              .tensor = program_[id].name,
                              .kernel_a = kernels_of(*on_a, options_.max_rows),
                              .kernel_b = kernels_of(*on_b, options_.max_rows),
                              .tolerance = program_[id].type == quant::Type::F32
                                               ? std::max(a_.tolerance(part), b_.tolerance(part))
                                               : 0.0};
      measure(by_a[i], by_b[i], id, difference);
      if (difference.error > difference.tolerance && std::isfinite(difference.error)) {
        if (!shaken) {
          run(*on_a, ops, results, true);
          shaken = results_of(*on_a, results);
        }
        difference.tolerance *= sensitivity(results, by_a, *shaken, i);
      }
      each(difference);
      keep(id, by_a[i]);
    }
  }

  /// How many times its operands' relative error a result has, at least 1: shaken inputs tell. Where ids
  /// changed with them, something else was computed, and that says nothing.
  double sensitivity(const std::vector<TensorId>& ids, const Results& results, const Results& shaken,
                     size_t of) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (program_[ids[i]].type != quant::Type::F32 && results[i] != shaken[i]) return 1;
    }
    OpDifference moved;
    measure(results[of], shaken[of], ids[of], moved);
    return std::isfinite(moved.error) ? std::max(1.0, moved.error / double{kShake}) : 1;
  }

  /// Fills in the error and the worst element. Values that are no numbers on both sides are equal.
  void measure(const std::vector<float>& a, const std::vector<float>& b, TensorId id,
               OpDifference& result) const {
    double error = 0, norm = 0, largest = -1;
    size_t worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
      double off = same ? 0.0 : std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      if (std::isnan(off)) off = std::numeric_limits<double>::infinity();
      if (off > largest) largest = off, worst = i;
      error += off * off;
      if (std::isfinite(a[i])) norm += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
    result.error = error == 0 ? 0
                   : norm > 0 ? std::sqrt(error / norm)
                              : std::numeric_limits<double>::infinity();
    const int64_t columns = program_[id].columns(), heads = program_[id].heads();
    const auto at = static_cast<int64_t>(worst);
    result.worst = {at / columns / heads, at / columns % heads, at % columns};
    result.a = a[worst];
    result.b = b[worst];
  }

  const Program program_;  ///< as the second backend runs it
  const WeightBytes& weights_;
  Backend &a_, &b_;
  CompileOptions options_;
  Batch batch_;
  std::map<TensorId, std::vector<float>> values_;  ///< by storage, whole: what the judge computed so far
};

}  // namespace

void compare_ops(const Program& program, const WeightBytes& weights, Backend& a, Backend& b,
                 std::span<const int32_t> tokens, const std::function<void(const OpDifference&)>& each,
                 int64_t layers) {
  Lockstep(program, weights, a, b, tokens).walk(each, layers);
}

std::vector<float> run_whole(const Program& program, const WeightBytes& weights, Backend& backend,
                             std::span<const int32_t> tokens) {
  const auto executable = backend.compile(program, weights, options_for(tokens));
  const Batch batch = one_step(tokens);
  std::vector<float> logits(tokens.size() * static_cast<size_t>(program[program.output()].columns()));
  run_logits(*executable, batch.input(), logits);
  return logits;
}

}  // namespace sluice::engine
