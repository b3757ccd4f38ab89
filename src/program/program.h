// The Program: the flat list of op records between models and backends, made once at load.
// The order is one legal schedule. Knows tensors and ops; no memory, no devices, no files.
#pragma once

#include <string>
#include <vector>

#include "program/op.h"
#include "program/operand.h"
#include "program/step.h"
#include "program/tensor.h"

namespace sluice::program {

class Program {
 public:
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Op>& ops() const { return ops_; }
  const Tensor& operator[](TensorId id) const { return tensors_[static_cast<size_t>(id)]; }

  TensorId add(Tensor tensor);
  void add(Op op) { ops_.push_back(std::move(op)); }

  /// The tensor that holds the memory of `id`: itself, or the base of a view.
  TensorId storage(TensorId id) const;

  /// What sequences keep from step to step: the tensors of kinds Cache and State, as they were added. All
  /// paged ones share page tables and slots of rows, all states their slots.
  const std::vector<TensorId>& caches() const { return caches_; }
  /// Which of caches() this is.
  size_t cache_index(TensorId id) const;
  bool has_states() const;
  /// The logits: [output rows, 1, vocabulary].
  TensorId output() const { return output_; }
  void set_output(TensorId id) { output_ = id; }
  /// Hidden states of all rows of a step, [step rows, 1, columns], which programs of one model hand to each
  /// other (Executable::take_rows): those that a step begins with, brought before it, and those that it
  /// leaves until the next one. kNoTensor: there are none. Of backends whose facts say so
  /// (Facts::hidden_rows).
  TensorId hidden_in() const { return hidden_in_; }
  TensorId hidden_out() const { return hidden_out_; }
  void set_hidden_in(TensorId id) { hidden_in_ = id; }
  void set_hidden_out(TensorId id) { hidden_out_ = id; }

  /// "7.mla_attend", or "head.matmul" outside of layers.
  std::string op_name(const Op& op) const;
  /// Rows that a tensor holds at a step: shape[0] with the symbols replaced.
  static int64_t rows(const Tensor& tensor, int64_t step_rows, int64_t output_rows);
  /// Rows that a step makes of it.
  static double rows(const Tensor& tensor, const StepShape& shape);

  /// Elements of a tensor that a step touches.
  double elements(TensorId id, const StepShape& shape) const;
  /// Bytes of `count` elements of the tensor's type; of a cache, of whole rows (quant/cache_row.h).
  double bytes(TensorId id, double count) const;
  /// Bytes of the whole tensor at a step; weights have no symbols.
  double bytes(TensorId id, const StepShape& shape) const { return bytes(id, elements(id, shape)); }

 private:
  std::vector<Tensor> tensors_;
  std::vector<Op> ops_;
  std::vector<TensorId> caches_;
  TensorId output_ = kNoTensor, hidden_in_ = kNoTensor, hidden_out_ = kNoTensor;
};

/// Checks every op's shapes and types, and that every activation is written before it is read. A violation is
/// a bug of a model builder: it throws Error with the op's name, so that tests can provoke it.
void verify(const Program& program);

/// The list as text, one line an op with operands and shapes. The golden dumps of tests are made of this. Of
/// a program of several places, ops are followed by theirs, operands of an op across places by theirs.
std::string dump(const Program& program);

/// A Program in which every fused op that `has` refuses is replaced by its expansion into simpler ops, all
/// the way down. A primitive that is refused throws Error "the backend NAME lacks OP". otherwise: emits
/// another expansion of an op that the description of it offers, one that suits the backend better, or gives
/// false.
Program legalize(const Program& program, const std::string& backend,
                 const std::function<bool(const Program&, const Op&)>& has,
                 const std::function<bool(Builder&, const Op&)>& otherwise = {});

/// Where every activation lies in one arena; a buffer is reused once its last reader is `window` ops behind,
/// or, if that is sooner, behind an op that all wait after (all_wait_after, by op), its last reader included.
struct MemoryPlan {
  std::vector<int64_t> offset_bytes;  ///< by TensorId; -1: not an activation, or a view
  int64_t arena_bytes = 0;
};
MemoryPlan plan_memory(const Program& program, int64_t max_rows, int64_t max_outputs, int window = 0,
                       const std::vector<bool>& all_wait_after = {});

/// How much of its caches a program is given.
struct CacheRoom {
  int64_t pages = 0;        ///< of every paged cache
  int64_t state_slots = 0;  ///< of every state
};
/// Bytes that a cache takes of it, a paged one with rows of its own type or of this one; the largest int64
/// when no int64 holds them.
int64_t cache_bytes(const Tensor& cache, const CacheRoom& room);
int64_t cache_bytes(const Tensor& cache, quant::Type type, const CacheRoom& room);
/// The same of all caches of a program.
int64_t cache_bytes(const Program& program, const CacheRoom& room);
int64_t cache_bytes(const Program& program, quant::Type type, const CacheRoom& room);

/// What all ops of a step move and compute.
Cost total_cost(const Program& program, const StepShape& shape);

}  // namespace sluice::program
