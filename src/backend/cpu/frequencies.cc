#include "backend/cpu/frequencies.h"

#include <algorithm>
#include <utility>

namespace sluice::backend::cpu {
namespace {

using namespace program;

const Rope* rope_of(const Op& op) {
  if (const auto* values = std::get_if<MlaValues>(&op.args)) return &values->turn;
  return std::get_if<Rope>(&op.args);
}

}  // namespace

Frequencies::Frequencies(const Program& program, const WeightBytes& weights)
    : table_of_(program.tensors().size(), -1) {
  for (const Op& op : program.ops()) {
    const Rope* rope = rope_of(op);
    if (rope == nullptr) continue;
    const int64_t dims = rope->rope_columns(program);
    std::vector<float> divisors(static_cast<size_t>(dims / 2), 1.0f);
    if (rope->factors) {
      const Tensor& factors = program[rope->factors.id];
      const std::byte* bytes = weights[static_cast<size_t>(program.storage(rope->factors.id))].data();
      const quant::TypeInfo& type = quant::type_info(factors.type);
      type.decode(bytes + quant::bytes_of(type, factors.offset), divisors.data(), dims / 2);
    }
    std::vector<double> table(divisors.size());
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = rope->params.frequency(static_cast<int64_t>(i), dims) / divisors[i];
    }
    const auto known = std::find(tables_.begin(), tables_.end(), table);
    table_of_[static_cast<size_t>(rope->out.id)] = static_cast<int32_t>(known - tables_.begin());
    if (known == tables_.end()) tables_.push_back(std::move(table));
  }
}

}  // namespace sluice::backend::cpu
