#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "program/op_info.h"

namespace sluice::program {

TensorId Program::add(Tensor tensor) {
  const auto id = static_cast<TensorId>(tensors_.size());
  if (tensor.kind == Kind::Cache || tensor.kind == Kind::State) caches_.push_back(id);
  tensors_.push_back(std::move(tensor));
  return id;
}

size_t Program::cache_index(TensorId id) const {
  const auto found = std::find(caches_.begin(), caches_.end(), id);
  CHECK(found != caches_.end(), "{} is no cache", (*this)[id].name);
  return static_cast<size_t>(found - caches_.begin());
}

bool Program::has_states() const {
  return std::any_of(caches_.begin(), caches_.end(),
                     [this](TensorId id) { return (*this)[id].kind == Kind::State; });
}

TensorId Program::storage(TensorId id) const {
  const TensorId base = (*this)[id].base;
  return base == kNoTensor ? id : base;
}

std::string Program::op_name(const Op& op) const {
  return op.layer < 0 ? info(op).name : fmt::format("{}.{}", op.layer, info(op).name);
}

int64_t Program::rows(const Tensor& tensor, int64_t step_rows, int64_t output_rows) {
  if (tensor.shape[0] == kStepRows)
    return tensor.most_rows > 0 ? std::min(step_rows, tensor.most_rows) : step_rows;
  return tensor.shape[0] == kOutputRows ? output_rows : tensor.shape[0];
}

double Program::rows(const Tensor& tensor, const StepShape& shape) {
  if (tensor.shape[0] == kStepRows) return shape.rows;
  return tensor.shape[0] == kOutputRows ? shape.outputs : static_cast<double>(tensor.shape[0]);
}

double Program::elements(TensorId id, const StepShape& shape) const {
  const Tensor& tensor = (*this)[id];
  return rows(tensor, shape) * static_cast<double>(tensor.shape[1] * tensor.shape[2]);
}

double Program::bytes(TensorId id, double count) const {
  const Tensor& tensor = (*this)[id];
  if (tensor.kind == Kind::Cache) {
    const auto columns = static_cast<double>(tensor.columns());
    return count / columns * static_cast<double>(tensor.cache_row().bytes());
  }
  const quant::TypeInfo& type = quant::type_info(tensor.type);
  return count * type.bytes / type.block;
}

Cost total_cost(const Program& program, const StepShape& shape) {
  Cost total;
  for (const Op& op : program.ops()) total += info(op).cost(program, op, shape);
  return total;
}

namespace {

std::string operand_text(const Program& program, const char* name, TensorId id) {
  const Tensor& tensor = program[id];
  const auto dimension = [](int64_t size) {
    if (size == kStepRows) return std::string("rows");
    return size == kOutputRows ? std::string("outputs") : std::to_string(size);
  };
  const std::string most = tensor.most_rows > 0 ? fmt::format(" up to {}", tensor.most_rows) : "";
  return fmt::format(
      "{}={}[{}{}, {}, {}]{}", name, tensor.name, dimension(tensor.shape[0]), most, tensor.shape[1],
      tensor.shape[2],
      tensor.kind != Kind::Activation ? fmt::format(":{}", quant::type_info(tensor.type).name) : "");
}

}  // namespace

std::string dump(const Program& program) {
  const bool several =
      std::ranges::any_of(program.tensors(), [](const Tensor& tensor) { return tensor.place > 0; });
  const auto at = [&](bool told, int32_t place) {
    return several && told ? fmt::format("@{}", place) : std::string();
  };
  std::string text;
  for (const Op& op : program.ops()) {
    const bool across = info(op).across_places;
    std::string reads, writes;
    info(op).operands(op, [&](const char* name, TensorId id, bool written) {
      std::string& list = written ? writes : reads;
      if (!list.empty()) list += " ";
      list += operand_text(program, name, id) + at(across, program[id].place);
    });
    const std::string attributes = info(op).attributes(op);
    text += fmt::format("{}{} {} -> {}{}{}\n", program.op_name(op), at(!across, op.place), reads, writes,
                        attributes.empty() ? "" : " | ", attributes);
  }
  return text;
}

}  // namespace sluice::program
