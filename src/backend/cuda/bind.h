// Op, types and sizes -> kernel. Pure, so that it can be printed; nothing is chosen during a step but which
// of the captured graphs runs.
#pragma once

#include <vector>

#include "backend/cuda/kernel.h"

namespace sluice::backend::cuda {

/// The kernel for steps of these sizes; null: there is none, and the op's expansion runs in its place.
const Kernel* bind(const program::Program& program, const program::Op& op, const Sizes& sizes);

/// How many products of operands rounded to halves stand behind each other in this op where it runs on matrix
/// units (steps of many rows); 0: it never does.
int products_of_halves(const program::Program& program, const program::Op& op, const Sizes& device);

/// The sizes that graphs are captured for, as far as max_rows: every combination of these.
std::vector<int64_t> row_buckets(int64_t max_rows);
std::vector<int64_t> context_buckets(int64_t longest);
/// The smallest bucket that holds `value`.
int64_t bucket_of(const std::vector<int64_t>& buckets, int64_t value);

/// An op, and what runs where no kernel serves: its expansion. A leaf has a kernel for all sizes.
struct Node {
  program::Op op;
  std::vector<Node> expansion;
};

/// A Program as this backend may run it: `program` holds the ops that some sizes have kernels for, and the
/// tensors of all expansions; `leaves` the same, expanded all the way.
struct Bound {
  program::Program program, leaves;
  std::vector<Node> nodes;  ///< one an op of `program`
  int longest_expansion = 0;
  Sizes device;  ///< what it was bound for
};

/// Throws Error "the backend cuda lacks OP" where a primitive has no kernel.
Bound bind_all(const program::Program& program, int64_t max_rows, int64_t longest, const Sizes& device);

/// The kernels that a node runs as, in order, with their ops.
struct Launch {
  const program::Op* op;
  const Kernel* kernel;
};
void add_launches(const program::Program& program, const Node& node, const Sizes& sizes,
                  std::vector<Launch>& list);

/// The bytes of scratch that any launch needs at most.
int64_t scratch_bytes(const Bound& bound, int64_t max_rows, int64_t longest);

}  // namespace sluice::backend::cuda
