#include "program/ops/embed.h"

#include "program/ops/checks.h"

namespace sluice::program {

void Embed::check(const Program& p) const {
  expect_weight(p, "table", table.id);
  expect_shape(p, "out", out.id, {kStepRows, 1, p[table.id].columns()});
}

Cost Embed::cost(const Program& p, const StepShape& shape) const {
  const double elements = p.elements(out.id, shape);
  return {p.bytes(table.id, elements), p.bytes(out.id, shape), 0};
}

void Embed::reference(RefMemory& memory, const StepInput& input) const {
  for (int64_t r = 0; r < input.rows(); ++r) {
    memory.weight_row(table.id, 0, input.tokens[static_cast<size_t>(r)], memory.row(out.id, r));
  }
}

std::vector<OpCase> Embed::cases() {
  std::vector<OpCase> list;
  for (const auto type : {quant::Type::Q4_0, quant::Type::Q6_K, quant::Type::F16}) {
    list.push_back({std::string(quant::type_info(type).name) + " 1000x512", 7,
                    [type](Builder& b) { b.embed(b.weight("table", type, 1, 1000, 512)); }});
  }
  return list;
}

}  // namespace sluice::program
