#include "program/places.h"

#include "program/op_info.h"

namespace sluice::program {
namespace {

/// The operands of an op across places that lie at this one; false: there are none.
bool keep_side(const Program& program, Op& op, int32_t place) {
  const auto is_elsewhere = [&](const auto& operand) { return program[operand.id].place != place; };
  const auto keep = [&](auto& sided) {
    std::erase_if(sided.in, is_elsewhere);
    std::erase_if(sided.out, is_elsewhere);
    return !sided.in.empty() || !sided.out.empty();
  };
  if (auto* reduce = std::get_if<AllReduce>(&op.args)) return keep(*reduce);
  if (auto* gather = std::get_if<AllGather>(&op.args)) return keep(*gather);
  auto& copy = std::get<Copy>(op.args);
  if (is_elsewhere(copy.in)) copy.in = {};
  if (is_elsewhere(copy.out)) copy.out = {};
  return static_cast<bool>(copy.in) || copy.out.id != kNoTensor;
}

}  // namespace

bool is_kept(const Tensor& tensor) { return tensor.kind == Kind::Cache || tensor.kind == Kind::State; }

Tensor by_name_alone(const Tensor& tensor) {
  Tensor name = tensor;
  name.kind = Kind::Activation;  // which takes memory where an op uses it
  return name;
}

Program program_at(const Program& program, int32_t place) {
  Program side;
  for (const Tensor& tensor : program.tensors()) {
    const bool is_others = is_kept(tensor) && tensor.place != place;
    side.add(is_others ? by_name_alone(tensor) : tensor);
  }
  for (const Op& whole : program.ops()) {
    Op op = whole;
    const bool across = info(op).across_places;
    if (across ? !keep_side(program, op, place) : op.place != place) continue;
    op.place = place;
    side.add(std::move(op));
  }
  if (program.output() != kNoTensor && program[program.output()].place == place)
    side.set_output(program.output());
  return side;
}

std::vector<Range> parts(const Program& program) {
  std::vector<Range> list;
  int64_t first = 0, next = 0;
  for (const Op& op : program.ops()) {
    if (info(op).across_places) {
      list.push_back({first, next});
      first = next + 1;
    }
    ++next;
  }
  list.push_back({first, next});
  return list;
}

}  // namespace sluice::program
