// Files with a real model's exact shapes and random weights: benchmarks and tests of a model without its
// download. Nothing sensible can come out of them, but every byte is read and every kernel runs as with the
// real file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gguf/writer.h"

namespace sluice::gguf {

/// The shape of a model and the facts that its file names (model/spec.h reads them back). Tests make smaller
/// ones: any shape will do whose rows are multiples of 32 and whose vocabulary is at least 320.
struct SynthModel {
  const char* name;   ///< on the command line
  const char* title;  ///< in the file
  const char* pretokenizer;
  int layers, dense_layers;
  int64_t vocabulary, context, width, dense_width;  ///< width: embedding; dense_width: feed-forward length
  int64_t heads;
  int64_t q_rank;                      ///< 0: queries are not compressed
  int64_t kv_rank, nope, rope, value;  ///< latent rank; per head: unrotated, rotated, value columns
  int64_t experts, experts_used, experts_shared, expert_width;  ///< 0 experts: dense model
  bool sigmoid_gating, normalised_weights, router_bias;
  bool tied_output;     ///< the embedding is the output matrix too
  bool has_prediction;  ///< published with a block of multi-token prediction
  float expert_scale, rope_base, norm_epsilon;
  float yarn_factor, yarn_log_multiplier;  ///< factor 0: no YaRN
  int64_t yarn_context;
  const char* architecture = "deepseek2";
  int64_t kv_heads = 0;  ///< heads of keys and values in grouped attention; 0: latent attention
  bool head_norms = false, projection_biases = false;  ///< grouped attention's
  const char* feed_forward_norm = "ffn_norm";          ///< what files call it
  /// Of gpt-oss: windows of so many positions, and with them sinks and biases of all that is multiplied.
  int64_t window = 0;
  /// Of qwen3next and its like: gated delta nets in all but every interval-th layer and the last one, and in
  /// those a gate behind each query; shared experts that count as a router says. interval 0: none of it.
  struct Delta {
    int interval;
    int64_t key_heads, heads, key, value, taps;
    bool in_turns;  ///< heads that share keys take turns; betas and decays are products of their own
    /// Of kimi-linear, with latent attention: a decay a channel of the keys. No gates behind queries, and
    /// shared experts as elsewhere.
    bool by_channel = false;
  };
  Delta delta = {};
  bool is_linear(int layer) const {
    return delta.interval > 0 && (layer + 1) % delta.interval != 0 && layer + 1 != layers;
  }
  /// Experts come in so many groups, of which each token uses some; 0: in one.
  int64_t expert_groups = 0, expert_groups_used = 0;
};

/// A mixture of types, as quantising programs lay them out.
struct SynthMix {
  const char* name;
  const char* meaning;
  uint32_t file_type;  ///< "general.file_type" of such files
};

struct SynthOptions {
  const SynthModel* model = nullptr;
  const SynthMix* mix = nullptr;
  int layers = 0;           ///< only the first so many; 0: all
  bool prediction = false;  ///< with the model's block of multi-token prediction, after its layers
  uint64_t seed = 1;
  /// How unlike experts are in how often they are selected: each one's router row is e^(skew * u) times as
  /// large, u between -0.5 and 0.5. 0: all alike. Of 64 experts, 4 used, half of them take 82% of the
  /// selections at 1, and the 32 that were selected last hold 75% of the next ones at 1.25.
  double router_skew = 0;
};

std::span<const SynthModel> synth_models();
std::span<const SynthMix> synth_mixes();  ///< the first is the default
/// Null when there is none of this name.
const SynthModel* find_synth_model(const std::string& name);
const SynthMix* find_synth_mix(const std::string& name);

/// The whole file but its weights.
WritePlan plan_synth(const SynthOptions& options);

/// The metadata part of the plan, with a generated vocabulary.
std::vector<WriteEntry> synth_metadata(const SynthOptions& options);

/// Fills `out` with valid blocks of a type whose numbers have about this mean and standard deviation. The
/// same arguments make the same bytes. F32 and the types of the mixes; a mean other than 0 only with F32.
void random_blocks(quant::Type type, float mean, float deviation, uint64_t seed, std::span<std::byte> out);

/// Writes the file; bytes depend on the options alone. `progress(done, total)` is called now and then with
/// bytes. An existing regular file is replaced when the new one is complete. Throws Error, before anything is
/// written when the disk has not enough room.
void write_synth(const SynthOptions& options, const WritePlan& plan, const std::string& path,
                 const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace sluice::gguf
