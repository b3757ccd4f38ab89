#include "backend/cpu/barriers.h"

#include "program/op_info.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// What an op does with one piece of memory.
struct Access {
  TensorId storage;
  bool written;
  int64_t begin, end;                       // bytes of the arena; empty outside of it
  int64_t heads, first_column, end_column;  // the columns of every head; of the storage
  bool step_rows;                           // one row a token of the step
};

struct OpAccesses {
  Share share;
  std::vector<Access> list;
};

OpAccesses accesses_of(const Program& program, const Op& op, const MemoryPlan& plan, int64_t max_rows,
                       int64_t max_outputs) {
  OpAccesses accesses{bind(program, op)->share, {}};
  info(op).operands(op, [&](const char*, TensorId id, bool written) {
    const TensorId storage = program.storage(id);
    const Tensor& tensor = program[id];
    const Tensor& whole = program[storage];
    if (tensor.kind == Kind::Weight) return;  // nobody writes it
    const int64_t begin = plan.offset_bytes[static_cast<size_t>(storage)];
    const int64_t bytes = tensor.kind != Kind::Activation
                              ? 0
                              : Program::rows(whole, max_rows, max_outputs) * whole.shape[1] *
                                    whole.shape[2] * quant::type_info(whole.type).bytes;
    // A cache's rows belong to the step's rows as much as an activation's do: each writes its own slot.
    const bool step_rows = tensor.kind == Kind::Cache || whole.shape[0] == kStepRows;
    accesses.list.push_back({storage, written, begin, begin + bytes, tensor.heads(), tensor.offset,
                             tensor.offset + tensor.columns(), step_rows});
  });
  return accesses;
}

bool conflict(const OpAccesses& a, const OpAccesses& b) {
  // Scratch is others' to read before such an op has ended on all workers, and to write before another one
  // has: nothing else says so where an op of another place stands before it.
  if (a.share == Share::Together || b.share == Share::Together) return true;
  const bool by_rows = a.share == Share::Rows && b.share == Share::Rows;
  for (const Access& x : a.list) {
    for (const Access& y : b.list) {
      if (!x.written && !y.written) continue;
      if (x.storage != y.storage) {  // strangers may have been given the same place in the arena
        if (x.begin < y.end && y.begin < x.end) return true;
        continue;
      }
      // Columns compare only between views that divide the storage into heads alike.
      const bool other_columns =
          x.heads == y.heads && (x.end_column <= y.first_column || y.end_column <= x.first_column);
      const bool same_worker = by_rows && x.step_rows && y.step_rows;
      if (!other_columns && !same_worker) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<bool> barriers_before(const Program& program, const MemoryPlan& plan, int64_t max_rows,
                                  int64_t max_outputs) {
  std::vector<bool> barriers;
  std::vector<OpAccesses> since_barrier;
  for (const Op& op : program.ops()) {
    OpAccesses accesses = accesses_of(program, op, plan, max_rows, max_outputs);
    bool barrier = false;
    for (const OpAccesses& earlier : since_barrier) barrier |= conflict(earlier, accesses);
    if (barrier) since_barrier.clear();
    barriers.push_back(barrier);
    since_barrier.push_back(std::move(accesses));
  }
  return barriers;
}

}  // namespace sluice::backend::cpu
