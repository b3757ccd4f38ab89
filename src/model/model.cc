#include "model/model.h"

#include <algorithm>

#include "model/build.h"
#include "model/weights.h"

namespace sluice::model {

bool is_prediction_alone(const gguf::File& file) {
  const auto predicts = [](const gguf::Tensor& t) {
    return t.name.find(".nextn.") != std::string_view::npos;
  };
  if (std::none_of(file.tensors().begin(), file.tensors().end(), predicts)) return false;
  // Its block keeps the number that it has behind the trunk, or is counted from 0.
  return file.tensor("blk.0.attn_norm.weight") == nullptr ||
         file.tensor("blk.0.nextn.eh_proj.weight") != nullptr;
}

Model Model::load(const std::string& path, quant::Type cache) { return load(gguf::File::open(path), cache); }

Model Model::load(gguf::File file, quant::Type cache) {
  Model model{std::move(file), {}, {}, {}};
  const std::string& path = model.file.path();
  if (is_prediction_alone(model.file)) {
    fail(
        "{}: holds a block of multi-token prediction alone, which is not used yet; "
        "expected the model that it belongs to",
        path);
  }
  Problems problems;
  model.spec = Spec::read(model.file, problems);
  problems.throw_if_any(path);  // shapes mean nothing without the facts
  program::Builder builder(model.program);
  Weights weights = find_weights(model.file, model.spec, builder, problems);
  problems.throw_if_any(path);
  build_forward(builder, model.spec, weights, cache);
  try {
    program::verify(model.program);
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
  model.weights = std::move(weights.bytes);
  model.weights.resize(model.program.tensors().size());
  return model;
}

std::optional<std::string> Model::add_prediction(quant::Type cache) {
  if (!has_prediction(file, spec)) return "the file has no block of multi-token prediction";
  if (spec.linear_layers() > 0)
    return "blocks of multi-token prediction behind linear attention are not supported";
  if (spec.window > 0) return "blocks of multi-token prediction behind layers with windows are not supported";
  Problems problems;
  program::Program trunk;
  program::Builder trunk_builder(trunk);
  Spec again = spec;
  Weights trunk_weights = find_weights(file, again, trunk_builder, problems);
  build_forward(trunk_builder, again, trunk_weights, cache, true);
  Prediction block;
  program::Builder builder(block.program);
  PredictionWeights found = find_prediction(file, spec, builder, problems);
  try {
    problems.throw_if_any(file.path());
    build_prediction(builder, spec, found, cache);
    program::verify(trunk);
    program::verify(block.program);
  } catch (const Error& error) {
    return error.what();
  }
  program = std::move(trunk);
  weights = std::move(trunk_weights.bytes);
  weights.resize(program.tensors().size());
  block.weights = std::move(found.block.bytes);
  block.weights.resize(block.program.tensors().size());
  prediction = std::move(block);
  return std::nullopt;
}

}  // namespace sluice::model
