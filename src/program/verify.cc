// The checks of a whole Program: every op by its own rules and at one place, parts of weights in whole
// blocks, and reads only of what was written.
#include <vector>

#include "base/error.h"
#include "program/op_info.h"
#include "program/program.h"

namespace sluice::program {
namespace {

/// Throws Error unless a view of a weight is a part of it, and its rows are whole blocks.
void check_view(const Program& program, const Tensor& view) {
  const Tensor& whole = program[view.base];
  const int64_t block = quant::type_info(view.type).block;
  const int64_t end = view.offset + (view.shape[0] - 1) * view.stride[0] +
                      (view.shape[1] - 1) * view.stride[1] + view.columns();
  if (view.offset < 0 || end > whole.shape[0] * whole.shape[1] * whole.shape[2])
    fail("{} is no part of {}", view.name, whole.name);
  if (view.offset % block != 0 || view.columns() % block != 0 || view.stride[1] % block != 0)
    fail("{}: columns from {} on, of {}: expected whole blocks of {} columns", view.name, view.offset,
         view.columns(), block);
}

}  // namespace

void verify(const Program& program) {
  std::vector<bool> written(program.tensors().size(), false);
  if (program.hidden_in() != kNoTensor) written[static_cast<size_t>(program.hidden_in())] = true;
  for (const Op& op : program.ops()) {
    const std::string name = program.op_name(op);
    try {
      info(op).check(program, op);
      info(op).operands(op, [&](const char*, TensorId id, bool) {
        if (program[id].kind == Kind::Weight && program[id].base != kNoTensor)
          check_view(program, program[id]);
      });
    } catch (const Error& error) {
      fail("{}: {}", name, error.what());
    }
    info(op).operands(op, [&](const char* operand, TensorId id, bool writes) {
      const Tensor& tensor = program[id];
      const auto storage = static_cast<size_t>(program.storage(id));
      if (tensor.place != op.place && !info(op).across_places)
        fail("{}: {}: {} is at place {}, not {}", name, operand, tensor.name, tensor.place, op.place);
      if (writes && tensor.kind == Kind::Weight) fail("{}: {}: {} is a weight", name, operand, tensor.name);
      if (tensor.kind != Kind::Activation) return;
      if (!writes && !written[storage])
        fail("{}: {}: {} is read before it is written", name, operand, tensor.name);
      if (writes) written[storage] = true;
    });
  }
  if (program.output() == kNoTensor) fail("the program has no output");
  if (!written[static_cast<size_t>(program.storage(program.output()))]) fail("the output is never written");
  if (const TensorId hidden = program.hidden_out();
      hidden != kNoTensor && !written[static_cast<size_t>(program.storage(hidden))])
    fail("the hidden states are never written");
}

}  // namespace sluice::program
