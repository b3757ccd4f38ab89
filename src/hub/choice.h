// Which of a repository's files are a model, and which model is meant by a number format.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/names.h"

namespace sluice::hub {

/// A model as one GGUF file, or as all parts of a split one in their order.
struct Model {
  std::string quant;  ///< "Q4_K_M"; where neither file nor folder end with one, the name without .gguf
  std::vector<File> files;
  int64_t bytes() const;
};

/// The models among these files, the smallest first. Projectors of pictures, importance matrices, blocks
/// of multi-token prediction alone and split models of which a part is missing are none.
std::vector<Model> models_of(const std::vector<File>& files);

/// What suits this machine.
struct Taste {
  int64_t available_bytes = INT64_MAX;          ///< for a model
  std::function<bool(std::string_view)> reads;  ///< whether a number format can be read; empty: all
};

/// The model that a name means. Without a quant: Q4_K_M where it fits; else the largest that fits and can be
/// read; else Q4_K_M; else the smallest. Throws Error that lists what there is.
const Model& choose(const std::vector<Model>& models, const ModelName& name, const Taste& taste);

}  // namespace sluice::hub
