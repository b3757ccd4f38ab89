// The facts of a model, read from a file's keys. Code branches on these facts, never on a model's name or its
// layer count; the rules that mend older files stand in spec.cc and nowhere else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "gguf/gguf.h"
#include "program/op.h"

namespace sluice::model {

struct Spec {
  std::string architecture;
  std::string name;
  int64_t layers = 0;        ///< trunk layers; multi-token prediction blocks are not among them
  int64_t dense_layers = 0;  ///< the first layers whose feed-forward network is dense
  int64_t context = 0;       ///< tokens that the model was made for
  int64_t dim = 0;
  int64_t vocabulary = 0;
  float epsilon = 0;

  // Attention: in latent space (kv_lora > 0), or of grouped queries over kv_heads heads of keys and values.
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< grouped attention only
  int64_t q_lora = 0;    ///< rank of the query's detour; 0: queries are projected directly
  int64_t kv_lora = 0;
  int64_t nope =
      0;  ///< query and key columns a head without position: the first in latent space, else the last
  int64_t rope = 0;   ///< query and key columns with position
  int64_t value = 0;  ///< value columns a head
  program::RopeParams rope_params;
  float attention_scale = 0;
  int64_t window = 0;          ///< positions that windowed layers attend to; 0: there are none
  std::vector<bool> windowed;  ///< by layer, where there is a window
  double temperature = 0;  ///< queries weigh more by position (program/ops/attention_temperature.h); 0: not
  double temperature_length = 1;  ///< positions a step

  // Linear attention, of layers that keep a state in place of cache rows (program/ops/delta_rule.h).
  std::vector<bool> linear;                  ///< by layer; empty: there are none
  int64_t linear_key_heads = 0;              ///< of queries and keys
  int64_t linear_heads = 0;                  ///< of values
  int64_t linear_key = 0, linear_value = 0;  ///< columns a head
  int64_t taps = 0;                          ///< of the convolution before it
  bool key_heads_in_turns = false;  ///< which heads of values share one of keys (DeltaRule::in_turns)
  bool decay_by_channel = false;    ///< and not by head
  bool gated_queries = false;       ///< of the other layers: behind each head's query its output's gate

  // Feed-forward networks.
  int64_t feed_forward = 0;  ///< width of the dense ones
  int64_t experts = 0;       ///< 0: every layer is dense
  int64_t experts_used = 0;
  int64_t expert_feed_forward = 0;
  int64_t shared_feed_forward = 0;  ///< width of all shared experts together; 0: there are none
  program::Gating gating = program::Gating::Softmax;
  bool normalize_weights = false;
  float weights_scale = 1.0f;
  program::Swiglu expert_form;
  int64_t groups = 1;
  int64_t groups_used = 1;

  bool is_moe(int64_t layer) const { return experts > 0 && layer >= dense_layers; }
  /// Positions that a layer attends to, the last ones; 0: all.
  int64_t window_of(int64_t layer) const {
    return window > 0 && windowed[static_cast<size_t>(layer)] ? window : 0;
  }
  bool is_linear(int64_t layer) const { return !linear.empty() && linear[static_cast<size_t>(layer)]; }
  /// Layers before this one that keep what it keeps: cache rows, or a state.
  int64_t alike_before(int64_t layer) const {
    int64_t count = 0;
    for (int64_t i = 0; i < layer; ++i) count += is_linear(i) == is_linear(layer) ? 1 : 0;
    return count;
  }
  int64_t linear_layers() const {
    return static_cast<int64_t>(std::count(linear.begin(), linear.end(), true));
  }
  /// Columns of what a convolution is over: queries, keys and values.
  int64_t linear_columns() const { return 2 * linear_key_heads * linear_key + linear_heads * linear_value; }
  bool is_latent() const { return kv_lora > 0; }
  bool any_dense() const { return experts == 0 || dense_layers > 0; }
  /// Query and key columns a head.
  int64_t key() const { return nope + rope; }
  /// Numbers that a token leaves in the cache of a layer.
  int64_t cache_columns() const { return is_latent() ? kv_lora + rope : kv_heads * (key() + value); }

  /// Reads the facts; what is missing or makes no sense, and what may change the arithmetic in a way that is
  /// not known, goes to problems.
  static Spec read(const gguf::File& file, Problems& problems);
};

}  // namespace sluice::model
