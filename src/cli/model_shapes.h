// A model's shapes without its file: a model as `sluice synth` would write it, whose weights are never made.
#pragma once

#include <string>

#include "model/model.h"

namespace sluice::cli {

class ModelShapes {
 public:
  /// mix: of `sluice synth`, or the name of a type ("Q2_K"), which then all matrices have whose rows are
  /// whole blocks of it. Throws Error when there is no such model or mix, or no address space for it.
  ModelShapes(const std::string& model, const std::string& mix, quant::Type cache = quant::Type::F16);
  ~ModelShapes();
  ModelShapes(const ModelShapes&) = delete;
  ModelShapes& operator=(const ModelShapes&) = delete;

  /// Its weights read as zeros.
  const model::Model& model() const { return *model_; }

 private:
  void* bytes_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<model::Model> model_;
};

}  // namespace sluice::cli
