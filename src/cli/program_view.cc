#include "cli/program_view.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "cli/output.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using program::Cost;
using program::Op;
using program::Program;
using program::StepShape;

/// What is bound for: rows of a step and positions of the cache, as runs with short contexts have them.
constexpr program::CompileOptions kBoundFor{.max_rows = 512, .max_outputs = 8, .cache_pages = 128};

/// What a backend makes of a model's Program; without a backend the Program, cut into places or as it is.
program::Binding binding_of(const model::Model& model, const ProgramView& shown) {
  if (shown.backend != nullptr) return shown.backend->bind({model.program, model.weights}, kBoundFor);
  return {.program = shown.places.empty() ? model.program : program::split(model.program, shown.places)};
}

/// The weights by type and layout, and what all of it takes.
std::string held_text(const program::Binding& binding, const std::string& backend) {
  struct Total {
    int64_t weights = 0, bytes = 0;
  };
  std::map<std::pair<std::string, std::string>, Total> totals;
  for (const program::PackedWeight& weight : binding.weights) {
    Total& total = totals[{quant::type_info(binding.program[weight.tensor].type).name, weight.layout}];
    total.weights += 1;
    total.bytes += weight.bytes;
  }
  std::string text = fmt::format("\nweights on backend {}: {}\n", backend, binding.weights.size());
  for (const auto& [kind, total] : totals)
    text += fmt::format("  {:>6}  {:<6}{:>12}  {}\n", total.weights, kind.first,
                        short_count(static_cast<double>(total.bytes), "B"), kind.second);
  const auto size = [](int64_t bytes) { return short_count(static_cast<double>(bytes), "B"); };
  return text +
         fmt::format(
             "memory for {} rows a step, {} outputs and {} positions: weights {}, cache {}, scratch {}\n",
             kBoundFor.max_rows, kBoundFor.max_outputs, kBoundFor.cache_pages * program::kPageRows,
             size(binding.needs.weights_bytes), size(binding.needs.cache_bytes),
             size(binding.needs.scratch_bytes));
}

const StepShape kOneToken{};

Json cost_json(const Cost& cost) {
  return {{"bytes_read", cost.bytes_read}, {"bytes_written", cost.bytes_written}, {"flops", cost.flops}};
}

}  // namespace

std::string program_text(const model::Model& model, const ProgramView& shown) {
  const program::Binding view = binding_of(model, shown);
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
  text += fmt::format("{:>12.0f} {:>12.0f}  {} ops, one token at depth 0\n", total.bytes_read, total.flops,
                      view.program.ops().size());
  return shown.backend == nullptr ? text : text + held_text(view, shown.backend->name());
}

Json program_json(const model::Model& model, const ProgramView& shown) {
  const program::Binding view = binding_of(model, shown);
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
      if (!shown.places.empty()) operands.back()["place"] = tensor.place;
    });
    Json record = {{"op", program::info(op).name},
                   {"layer", op.layer},
                   {"operands", std::move(operands)},
                   {"attributes", program::info(op).attributes(op)},
                   {"cost", cost_json(program::info(op).cost(view.program, op, kOneToken))}};
    if (!view.kernels.empty()) record["kernel"] = view.kernels[i].name;
    ops.push_back(std::move(record));
  }
  Json all = {{"ops", std::move(ops)}, {"total", cost_json(program::total_cost(view.program, kOneToken))}};
  if (shown.backend == nullptr) return all;
  Json& weights = all["weights"] = Json::array();
  for (const program::PackedWeight& weight : view.weights) {
    const program::Tensor& tensor = view.program[weight.tensor];
    weights.push_back({{"tensor", tensor.name},
                       {"type", quant::type_info(tensor.type).name},
                       {"layout", weight.layout},
                       {"bytes", weight.bytes}});
  }
  all["memory"] = {{"rows", kBoundFor.max_rows},
                   {"outputs", kBoundFor.max_outputs},
                   {"positions", kBoundFor.cache_pages * program::kPageRows},
                   {"weights_bytes", view.needs.weights_bytes},
                   {"cache_bytes", view.needs.cache_bytes},
                   {"scratch_bytes", view.needs.scratch_bytes}};
  return all;
}

}  // namespace sluice::cli
