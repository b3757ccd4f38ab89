#include "model/model.h"

#include "model/build.h"
#include "model/weights.h"

namespace sluice::model {

Model Model::load(const std::string& path) { return load(gguf::File::open(path)); }

Model Model::load(gguf::File file) {
  Model model{std::move(file), {}, {}, {}};
  const std::string& path = model.file.path();
  Problems problems;
  model.spec = Spec::read(model.file, problems);
  problems.throw_if_any(path);  // shapes mean nothing without the facts
  program::Builder builder(model.program);
  Weights weights = find_weights(model.file, model.spec, builder, problems);
  problems.throw_if_any(path);
  build_forward(builder, model.spec, weights);
  try {
    program::verify(model.program);
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
  model.weights = std::move(weights.bytes);
  model.weights.resize(model.program.tensors().size());
  return model;
}

}  // namespace sluice::model
