#include "program/ops/all_reduce.h"

#include <algorithm>

#include "program/ops/checks.h"

namespace sluice::program {

void AllReduce::check(const Program& p) const {
  if (in.empty() || out.empty()) fail("nothing to add, or nobody to have it");
  for (const Read& one : in) expect_shape(p, "in", one.id, p[in[0].id].shape);
  for (const Write& one : out) expect_shape(p, "out", one.id, p[in[0].id].shape);
  expect_one_a_place(p, in), expect_one_a_place(p, out);
}

Cost AllReduce::cost(const Program& p, const StepShape& shape) const {
  Cost cost;
  for (const Read& one : in) {
    cost.bytes_read += p.bytes(one.id, shape);
    if (one.id != in[0].id) cost.flops += p.elements(one.id, shape);
  }
  for (const Write& one : out) cost.bytes_written += p.bytes(one.id, shape);
  return cost;
}

void AllReduce::reference(RefMemory& memory, const StepInput& input) const {
  const Tensor& t = memory.program()[in[0].id];
  std::vector<float> sum(static_cast<size_t>(t.columns()));
  for (int64_t r = 0; r < Program::rows(t, input.rows(), input.outputs()); ++r) {
    for (int64_t h = 0; h < t.heads(); ++h) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (const Read& one : in) {
        const float* x = memory.row(one.id, r, h);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += x[c];
      }
      for (const Write& one : out) std::copy(sum.begin(), sum.end(), memory.row(one.id, r, h));
    }
  }
}

std::vector<OpCase> AllReduce::cases() {
  const auto build = [](int32_t ins, int32_t outs) {
    return [=](Builder& b) {
      AllReduce op;
      for (int32_t place = 0; place < std::max(ins, outs); ++place) {
        b.set_place(place);
        if (place < ins) op.in.push_back({b.activation("part", kStepRows, 1, 2048)});
        if (place < outs) op.out.push_back({b.activation("sum", kStepRows, 1, 2048)});
      }
      b.emit(op);
    };
  };
  return {{"2 places", 5, build(2, 2)}, {"3 places to 1", 7, build(3, 1)}, {"1 place to 4", 1, build(1, 4)}};
}

}  // namespace sluice::program
