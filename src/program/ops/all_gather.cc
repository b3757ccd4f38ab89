#include "program/ops/all_gather.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

void AllGather::check(const Program& p) const {
  if (in.empty() || out.empty()) fail("nothing to gather, or nobody to have it");
  int64_t columns = 0;
  for (const Read& one : in) {
    expect_shape(p, "in", one.id, {p[in[0].id].shape[0], 1, p[one.id].columns()});
    columns += p[one.id].columns();
  }
  for (const Write& one : out) expect_shape(p, "out", one.id, {p[in[0].id].shape[0], 1, columns});
  expect_one_a_place(p, in), expect_one_a_place(p, out);
}

Cost AllGather::cost(const Program& p, const StepShape& shape) const {
  Cost cost;
  for (const Read& one : in) cost.bytes_read += p.bytes(one.id, shape);
  for (const Write& one : out) cost.bytes_written += p.bytes(one.id, shape);
  return cost;
}

void AllGather::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  for (int64_t r = 0; r < Program::rows(p[in[0].id], input.rows(), input.outputs()); ++r) {
    for (const Write& to : out) {
      float* next = memory.row(to.id, r);
      for (const Read& one : in) next = std::copy_n(memory.row(one.id, r), p[one.id].columns(), next);
    }
  }
}

std::vector<OpCase> AllGather::cases() {
  const auto build = [](const std::vector<int64_t>& columns, int32_t outs) {
    return [=](Builder& b) {
      AllGather op;
      int64_t all = 0;
      for (int32_t place = 0; place < static_cast<int32_t>(columns.size()); ++place) {
        b.set_place(place);
        op.in.push_back({b.activation("part", kStepRows, 1, columns[static_cast<size_t>(place)])});
        all += columns[static_cast<size_t>(place)];
      }
      for (int32_t place = 0; place < outs; ++place) {
        b.set_place(place);
        op.out.push_back({b.activation("all", kStepRows, 1, all)});
      }
      b.emit(op);
    };
  };
  return {{"1024 and 992", 5, build({1024, 992}, 2)}, {"3 uneven ones to 1", 7, build({37, 160, 1}, 1)}};
}

}  // namespace sluice::program
