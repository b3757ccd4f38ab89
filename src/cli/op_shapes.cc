#include "cli/op_shapes.h"
#include "cli/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "gguf/synth.h"
#include "profile/op_bench.h"
#include "profile/report.h"
#include "program/op_info.h"

namespace sluice::cli {
namespace {

using program::Kind;
using program::Op;
using program::Program;
using program::TensorId;

constexpr size_t kRandomBytes = 8 << 20;  // repeated behind each other

/// What tells shapes apart: the op and all that a kernel could be chosen by, which a cache's layer is not.
std::string key_of(const Program& program, Op op) {
  std::visit(
      [](auto& args) {
        if constexpr (requires { args.cache_layer; }) args.cache_layer = 0;
      },
      op.args);
  std::string key = std::string(program::info(op).name) + " " + program::info(op).attributes(op);
  program::info(op).operands(op, [&](const char* name, TensorId id, bool) {
    const program::Tensor& tensor = program[id];
    key += fmt::format(" {} {} {} {}", name, quant::type_info(tensor.type).name,
                       tensor.kind == Kind::Cache || tensor.kind == Kind::State ? 0 : tensor.shape[0],
                       fmt::join(tensor.shape.begin() + 1, tensor.shape.end(), "x"));
  });
  return key;
}

}  // namespace

void OpShapes::add_file(const std::string& path) {
  files_.push_back(std::make_unique<model::Model>(open_unpacked_model(path)));
  const std::string& whole = files_.back()->file.path();
  add(gguf::printable(whole.substr(whole.rfind('/') + 1)), *files_.back(), true);
}

void OpShapes::add_synth(const std::string& model, const std::string& mix) {
  synths_.push_back(std::make_unique<ModelShapes>(model, mix));
  add(model, synths_.back()->model(), false);
}

void OpShapes::add(const std::string& name, const model::Model& model, bool has_weights) {
  const Program& program =
      *programs_.emplace_back(std::make_unique<Program>(legalize(model.program, backend_, rows_)));
  std::set<size_t> of_this_model;
  for (const Op& op : program.ops()) {
    const auto [at, is_new] = index_.emplace(key_of(program, op), list_.size());
    if (is_new) {
      list_.push_back({.op = program::info(op).name,
                       .weight = profile::weight_of(program, op),
                       .shape = profile::shape_text(program, op),
                       .models = {name},
                       .program = &program,
                       .record = &op,
                       .file = has_weights ? &model : nullptr});
      of_this_model.insert(at->second);
    }
    OpShape& shape = list_[at->second];
    if (of_this_model.contains(at->second)) ++shape.calls;
    if (std::find(shape.models.begin(), shape.models.end(), name) == shape.models.end())
      shape.models.push_back(name);
  }
}

const program::WeightBytes& OpShapes::weights(const OpShape& shape) {
  if (shape.file != nullptr) return shape.file->weights;
  const Program& program = *shape.program;
  weights_.assign(program.tensors().size(), {});
  std::vector<std::pair<TensorId, size_t>> needed;
  program::info(*shape.record).operands(*shape.record, [&](const char*, TensorId id, bool) {
    const TensorId storage = program.storage(id);
    const program::Tensor& tensor = program[storage];
    if (tensor.kind != Kind::Weight) return;
    const quant::TypeInfo& type = quant::type_info(tensor.type);
    const auto bytes =
        static_cast<size_t>(quant::bytes_of(type, tensor.shape[0] * tensor.shape[1] * tensor.shape[2]));
    needed.emplace_back(storage, bytes);
    std::vector<std::byte>& random = random_[tensor.type];
    if (random.size() >= bytes) return;
    const size_t piece = kRandomBytes / static_cast<size_t>(type.bytes) * static_cast<size_t>(type.bytes);
    random.resize((bytes + piece - 1) / piece * piece);
    gguf::random_blocks(tensor.type, 0, 0.02f, 1, std::span(random).first(piece));
    for (size_t at = piece; at < random.size(); at += piece) std::memcpy(&random[at], random.data(), piece);
  });
  for (const auto& [id, bytes] : needed) {
    weights_[static_cast<size_t>(id)] = std::span<const std::byte>(random_[program[id].type]).first(bytes);
  }
  return weights_;
}

}  // namespace sluice::cli
