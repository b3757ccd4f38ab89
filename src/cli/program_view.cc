#include "cli/program_view.h"

#include <fmt/format.h>

#include "cli/assemble.h"
#include "program/op_info.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using program::Cost;
using program::Op;
using program::Program;
using program::StepShape;

/// A model's Program, and the kernels it is bound to when asked for.
struct View {
  model::Model model;
  Program program;
  std::vector<program::BoundKernel> kernels;  // empty, or one an op
};

View load_view(const std::string& path, quant::Type cache, bool bound) {
  View view{model::Model::load(path, cache), {}, {}};
  view.program = view.model.program;
  if (bound) {
    const auto backend = make_backend("cpu", 1);
    const auto executable = backend->compile({view.model.program, view.model.weights}, nullptr, {1, 1, 1});
    view.program = executable->program();
    view.kernels = executable->bound();
  }
  return view;
}

const StepShape kOneToken{};

Json cost_json(const Cost& cost) {
  return {{"bytes_read", cost.bytes_read}, {"bytes_written", cost.bytes_written}, {"flops", cost.flops}};
}

}  // namespace

std::string program_text(const std::string& model_path, quant::Type cache, bool bound) {
  const View view = load_view(model_path, cache, bound);
  const std::string lines = program::dump(view.program);
  std::string text = fmt::format("{:>12} {:>12}  op\n", "bytes read", "FLOPs");
  size_t begin = 0;
  for (size_t i = 0; i < view.program.ops().size(); ++i) {
    const Op& op = view.program.ops()[i];
    const Cost cost = program::info(op).cost(view.program, op, kOneToken);
    const size_t end = lines.find('\n', begin);
    text +=
        fmt::format("{:>12.0f} {:>12.0f}  {}", cost.bytes_read, cost.flops, lines.substr(begin, end - begin));
    text += view.kernels.empty() ? "\n" : fmt::format(" => {}\n", view.kernels[i].name);
    begin = end + 1;
  }
  const Cost total = program::total_cost(view.program, kOneToken);
  return text + fmt::format("{:>12.0f} {:>12.0f}  {} ops, one token at depth 0\n", total.bytes_read,
                            total.flops, view.program.ops().size());
}

Json program_json(const std::string& model_path, quant::Type cache, bool bound) {
  const View view = load_view(model_path, cache, bound);
  Json ops = Json::array();
  for (size_t i = 0; i < view.program.ops().size(); ++i) {
    const Op& op = view.program.ops()[i];
    Json operands = Json::array();
    program::info(op).operands(op, [&](const char* name, program::TensorId id, bool written) {
      const program::Tensor& tensor = view.program[id];
      operands.push_back({{"operand", name},
                          {"written", written},
                          {"tensor", tensor.name},
                          {"type", quant::type_info(tensor.type).name},
                          {"shape", tensor.shape}});
    });
    Json record = {{"op", program::info(op).name},
                   {"layer", op.layer},
                   {"operands", std::move(operands)},
                   {"attributes", program::info(op).attributes(op)},
                   {"cost", cost_json(program::info(op).cost(view.program, op, kOneToken))}};
    if (!view.kernels.empty()) record["kernel"] = view.kernels[i].name;
    ops.push_back(std::move(record));
  }
  return {{"ops", std::move(ops)}, {"total", cost_json(program::total_cost(view.program, kOneToken))}};
}

}  // namespace sluice::cli
