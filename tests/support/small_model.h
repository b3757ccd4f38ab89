// Model files of some 30 kB with everything that real ones have: to be damaged byte by byte.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "gguf/synth.h"

namespace sluice::test {

/// The model of this name (gguf/synth.h) with the fewest and smallest tensors that still are that model.
inline gguf::SynthModel small_model(const std::string& name) {
  gguf::SynthModel model = *gguf::find_synth_model(name);
  model.layers = 2;
  model.vocabulary = 320;
  model.context = 256;
  model.width = model.dense_width = model.kv_rank = model.nope = model.value = 32;
  model.rope = 32;
  model.heads = 2;
  if (model.q_rank > 0) model.q_rank = 32;
  if (model.experts > 0) {
    model.experts = 4;
    model.experts_used = 2;
    model.expert_width = 32;
  }
  return model;
}

/// Writes the model of this name, small, with the types of a mix; with its block of multi-token prediction.
inline void write_small_model(const std::string& name, const std::string& mix, const std::string& path,
                              bool prediction = false) {
  const gguf::SynthModel model = small_model(name);
  const gguf::SynthOptions options = {
      .model = &model, .mix = gguf::find_synth_mix(mix), .prediction = prediction};
  gguf::write_synth(options, gguf::plan_synth(options), path, [](uint64_t, uint64_t) {});
}

}  // namespace sluice::test
