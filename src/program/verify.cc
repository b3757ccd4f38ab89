// The checks of a whole Program: every op by its own rules, and reads only of what was written.
#include <vector>

#include "base/error.h"
#include "program/op_info.h"
#include "program/program.h"

namespace sluice::program {

void verify(const Program& program) {
  std::vector<bool> written(program.tensors().size(), false);
  for (const Op& op : program.ops()) {
    const std::string name = program.op_name(op);
    try {
      info(op).check(program, op);
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
}

}  // namespace sluice::program
