// A place's side of a program as programs of one place: what it runs between two ops across places.
#include <set>

#include "base/error.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::program {
namespace {

/// What ops read, and what they write.
struct Operands {
  std::set<TensorId> read, written;

  void add(const Program& program, const Op& op) {
    info(op).operands(op, [&](const char*, TensorId id, bool writes) {
      (writes ? written : read).insert(program.storage(id));
    });
  }
  bool contains(TensorId id) const { return read.contains(id) || written.contains(id); }
};

/// The ops of a part with the side's tensors; of its caches those that they use.
Program stretch_of(const Program& side, const Range& part, const Operands& operands) {
  Program stretch;
  for (size_t id = 0; id < side.tensors().size(); ++id) {
    Tensor tensor = side.tensors()[id];
    if (is_kept(tensor) && !operands.contains(static_cast<TensorId>(id))) tensor = by_name_alone(tensor);
    tensor.place = 0;
    stretch.add(std::move(tensor));
  }
  for (int64_t i = part.first; i < part.last; ++i) {
    Op op = side.ops()[static_cast<size_t>(i)];
    op.place = 0;
    stretch.add(std::move(op));
  }
  if (side.output() != kNoTensor && operands.written.contains(side.storage(side.output())))
    stretch.set_output(side.output());
  return stretch;
}

}  // namespace

std::vector<TensorId> inputs(const Program& program) {
  Operands operands;
  for (const Op& op : program.ops()) operands.add(program, op);
  std::vector<TensorId> list;
  for (const TensorId id : operands.read) {
    if (program[id].kind == Kind::Activation && !operands.written.contains(id)) list.push_back(id);
  }
  return list;
}

std::vector<Program> stretches(const Program& side) {
  std::vector<Program> list;
  Operands across;  // so far: what it writes was brought here
  for (const Range& part : parts(side)) {
    Operands operands;
    for (int64_t i = part.first; i < part.last; ++i) operands.add(side, side.ops()[static_cast<size_t>(i)]);
    list.push_back(stretch_of(side, part, operands));
    for (const TensorId id : inputs(list.back())) {
      if (!across.written.contains(id)) fail("{} is read behind what other places do, too", side[id].name);
    }
    if (part.last == std::ssize(side.ops())) break;
    Operands next;
    next.add(side, side.ops()[static_cast<size_t>(part.last)]);
    for (const TensorId id : next.read) {
      if (operands.read.contains(id)) fail("{} is read where it is made and taken away", side[id].name);
    }
    across.written.merge(next.written);
  }
  return list;
}

}  // namespace sluice::program
