#include "program/ops/gather_rows.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

void GatherRows::check(const Program& p) const {
  const int64_t columns = p[in.id].columns();
  expect_shape(p, "in", in.id, {kStepRows, 1, columns});
  expect_shape(p, "out", out.id, {kOutputRows, 1, columns});
}

Cost GatherRows::cost(const Program& p, const StepShape& shape) const {
  return {p.bytes(out.id, shape), p.bytes(out.id, shape), 0};
}

void GatherRows::reference(RefMemory& memory, const StepInput& input) const {
  const int64_t columns = memory.program()[in.id].columns();
  for (int64_t i = 0; i < input.outputs(); ++i) {
    std::copy_n(memory.row(in.id, input.output_rows[static_cast<size_t>(i)]), columns, memory.row(out.id, i));
  }
}

std::vector<OpCase> GatherRows::cases() {
  return {{"2048", 6, [](Builder& b) { b.gather_rows(b.activation("x", kStepRows, 1, 2048)); }}};
}

}  // namespace sluice::program
