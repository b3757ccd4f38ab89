// The tensors of a model by what they are for: checks names, types and shapes against the facts, and tells
// the Program of them. Layout variants (k_b and v_b split or not, gate and up fused or not) end here, and so
// do tensors of which nobody knows what they are for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "model/spec.h"
#include "program/backend.h"
#include "program/builder.h"

namespace sluice::model {

using program::kNoTensor;
using program::TensorId;

/// By weight, what its products are multiplied by, [1, 1, matrices]: a number a matrix, which NVFP4's files
/// have beside the scales of its blocks.
using Scales = std::map<TensorId, TensorId>;

/// One layer's weights; kNoTensor where the model has none.
struct Layer {
  TensorId attn_norm = kNoTensor, ffn_norm = kNoTensor;
  TensorId q_a = kNoTensor, q_a_norm = kNoTensor;  ///< absent without q_lora
  TensorId q = kNoTensor;  ///< from the latent query if there is q_lora, else from the row
  TensorId kv_a = kNoTensor, kv_a_norm = kNoTensor;
  TensorId k_b = kNoTensor, v_b = kNoTensor;
  program::Reduce k_b_reduce = program::Reduce::Columns;
  TensorId k = kNoTensor, v = kNoTensor;  ///< grouped attention, and the seven below
  TensorId q_bias = kNoTensor, k_bias = kNoTensor, v_bias = kNoTensor, attn_output_bias = kNoTensor;
  TensorId sinks = kNoTensor;                       ///< a score a head
  TensorId q_norm = kNoTensor, k_norm = kNoTensor;  ///< of each head by itself
  TensorId attn_output = kNoTensor;                 ///< of linear attention, too
  /// Linear attention, and all below. Queries, keys and values are one product and one convolution, or three
  /// each (q, k and v).
  TensorId qkv = kNoTensor, conv = kNoTensor;
  TensorId q_conv = kNoTensor, k_conv = kNoTensor, v_conv = kNoTensor;
  TensorId output_gate = kNoTensor, output_gate_a = kNoTensor;  ///< the latter: of a low rank, before it
  /// A number a head each: both in one product, those of a head of keys together, or in two. decay_a: as
  /// output_gate_a.
  TensorId beta_decay = kNoTensor, beta = kNoTensor, decay = kNoTensor, decay_a = kNoTensor;
  TensorId decay_rate = kNoTensor, decay_bias = kNoTensor;
  TensorId linear_norm = kNoTensor;                             ///< of what each head gives
  TensorId gate = kNoTensor, up = kNoTensor, down = kNoTensor;  ///< dense
  /// Mixture of experts, and all below. router_bias is of the selection alone, logit_bias of the router's
  /// product.
  TensorId router = kNoTensor, router_bias = kNoTensor, logit_bias = kNoTensor;
  TensorId expert_gate = kNoTensor, expert_up = kNoTensor, expert_down = kNoTensor;
  TensorId gate_bias = kNoTensor, up_bias = kNoTensor, down_bias = kNoTensor;  ///< of each expert
  TensorId shared_gate = kNoTensor, shared_up = kNoTensor, shared_down = kNoTensor;
  TensorId shared_router = kNoTensor;  ///< a row's product is how much the shared experts count
  Scales scales;

  TensorId scale_of(TensorId weight) const {
    const auto found = scales.find(weight);
    return found != scales.end() ? found->second : kNoTensor;
  }
};

struct Weights {
  TensorId token_embedding = kNoTensor, output_norm = kNoTensor, output = kNoTensor;
  TensorId output_scale = kNoTensor;  ///< as Scales
  TensorId rope_factors = kNoTensor;  ///< divide the rope frequencies; most files have none
  std::vector<Layer> layers;
  program::WeightBytes bytes;  ///< by TensorId
};

/// A block of multi-token prediction: a layer, what is before it, and norm and matrix behind it. Its token
/// table and output matrix are the model's own where it has none.
struct PredictionWeights {
  TensorId embedding_norm = kNoTensor, hidden_norm = kNoTensor;
  TensorId projection = kNoTensor;  ///< of the embedding and the hidden state, side by side
  TensorId projection_scale = kNoTensor;
  Weights block;
};

/// Whether the file has such a block behind the trunk.
bool has_prediction(const gguf::File& file, const Spec& spec);

/// The same as find_weights() of the block alone.
PredictionWeights find_prediction(const gguf::File& file, const Spec& spec, program::Builder& builder,
                                  Problems& problems);

/// Adds the model's weights to the Program. What is missing or has the wrong shape or type goes to problems.
/// Fills in the facts that only tensors tell: the vocabulary's size and q_lora.
Weights find_weights(const gguf::File& file, Spec& spec, program::Builder& builder, Problems& problems);

}  // namespace sluice::model
