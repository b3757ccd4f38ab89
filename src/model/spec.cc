#include "model/spec.h"

#include <algorithm>
#include <cmath>

#include "model/keys.h"

namespace sluice::model {
namespace {

/// Which layers have linear attention instead, and of which kind.
enum class Linear : uint8_t {
  None,
  Together,  ///< gated delta nets, all but every so many-th layer; heads that share keys stand together
  InTurns,   ///< the same, but such heads take turns
  Channels,  ///< Kimi's, with a decay a channel: layers without heads of keys
};

/// What an architecture's name stands for that no key tells.
struct Architecture {
  std::string_view name;
  bool latent;  ///< attention in latent space
  program::RopePairs pairs;
  bool experts = false;       ///< it may have mixtures of experts
  bool normalised = false;    ///< their weights are, unless a key says otherwise
  program::Swiglu form = {};  ///< of the experts
  int64_t window_period = 0;  ///< every so many-th layer attends to all positions, the others in a window
  bool whole_ramp = true;     ///< YaRN's (program/ops/rope.h)
  Linear linear = Linear::None;
  bool turns = true;  ///< queries and keys, by position
};
constexpr Architecture kArchitectures[] = {
    {"deepseek2", true, program::RopePairs::Neighbours, true},
    // ollama's early GLM-4.7-Flash files: deepseek2 under another name, with other meanings of two keys.
    {"glm4moelite", true, program::RopePairs::Neighbours, true},
    {"mistral4", true, program::RopePairs::Neighbours, true, true},
    {"llama", false, program::RopePairs::Neighbours},
    {"qwen2", false, program::RopePairs::Halves},
    {"qwen3", false, program::RopePairs::Halves},
    {"qwen3moe", false, program::RopePairs::Halves, true, true},
    {"glm4moe", false, program::RopePairs::Halves, true},
    {"gpt-oss",
     false,
     program::RopePairs::Halves,
     true,
     true,
     {.alpha = 1.702f, .limit = 7, .shift = 1},
     2,
     false},
    {.name = "qwen3next",
     .latent = false,
     .pairs = program::RopePairs::Halves,
     .experts = true,
     .normalised = true,
     .linear = Linear::Together},
    {.name = "qwen35", .latent = false, .pairs = program::RopePairs::Halves, .linear = Linear::InTurns},
    {.name = "qwen35moe",
     .latent = false,
     .pairs = program::RopePairs::Halves,
     .experts = true,
     .normalised = true,
     .linear = Linear::InTurns},
    {.name = "kimi-linear",
     .latent = true,
     .pairs = program::RopePairs::Neighbours,
     .experts = true,
     .normalised = true,
     .linear = Linear::Channels,
     .turns = false},
};

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& row) { return row.name == name; });
  return found != std::end(kArchitectures) ? found : nullptr;
}

/// A state has the square of it a head.
constexpr int64_t kMostHeadColumns = 1024;

void read_latent_attention(Keys& keys, Spec& spec) {
  spec.kv_lora = keys.required("attention.kv_lora_rank");
  spec.rope = keys.required("rope.dimension_count", 2);
  if (spec.rope % 2 != 0) keys.refuse("rope.dimension_count is {}, expected an even number", spec.rope);
  // Files of today give the absorbed sizes as key_length and value_length and the heads' own with _mla; older
  // ones (DeepSeek-V2 conversions before 2025) have no _mla keys and the heads' own sizes in the plain ones.
  // ollama's early files have both, the other way round.
  const bool absorbed = keys.has("attention.key_length_mla") && keys.has("attention.value_length_mla") &&
                        spec.architecture != "glm4moelite";
  const char* const key_name = absorbed ? "attention.key_length_mla" : "attention.key_length";
  const int64_t key = keys.required(key_name);
  spec.value = keys.required(absorbed ? "attention.value_length_mla" : "attention.value_length");
  spec.nope = key - spec.rope;
  if (key > 0 && spec.nope <= 0)
    keys.refuse("{} is {}, which leaves nothing beside {} rope columns", key_name, key, spec.rope);
  // There is one latent row, whatever a file says; the query's detour is told by its tensors.
  keys.known({"attention.key_length", "attention.value_length", "attention.key_length_mla",
              "attention.value_length_mla", "attention.head_count_kv", "attention.q_lora_rank"});
}

void read_grouped_attention(Keys& keys, Spec& spec) {
  spec.kv_heads = keys.integer("attention.head_count_kv", spec.heads, 1);
  if (spec.heads % std::max<int64_t>(1, spec.kv_heads) != 0) {
    keys.refuse("attention.head_count_kv is {}, which does not divide {} heads", spec.kv_heads, spec.heads);
  }
  // Without key_length the heads share the model's width out.
  const int64_t share = spec.heads > 0 && spec.dim % spec.heads == 0 ? spec.dim / spec.heads : 0;
  const int64_t key = keys.integer("attention.key_length", share, 2);
  spec.value = keys.integer("attention.value_length", key, 1);
  if (key == 0)
    keys.refuse("attention.key_length is missing, and {} heads do not divide {}", spec.heads, spec.dim);
  spec.rope = keys.integer("rope.dimension_count", key, 2, std::max<int64_t>(2, key));
  if (spec.rope % 2 != 0) {
    keys.refuse("{} is {}, expected an even number",
                keys.has("rope.dimension_count") ? "rope.dimension_count" : "attention.key_length",
                spec.rope);
  }
  spec.nope = key - spec.rope;
}

/// Which layers attend in a window: all but every so many-th, unless a key gives another period or says it of
/// each layer.
void read_window(Keys& keys, int64_t period, Spec& spec) {
  spec.window = keys.required("attention.sliding_window");
  const std::string pattern = "attention.sliding_window_pattern";
  if (auto list = keys.flags(pattern, static_cast<size_t>(spec.layers))) {
    spec.windowed = std::move(*list);
    return;
  }
  period = keys.integer(pattern, period, 1, 4096);
  for (int64_t layer = 0; layer < spec.layers; ++layer) spec.windowed.push_back((layer + 1) % period != 0);
}

/// Kimi's layers of latent attention have one head of keys, the linear ones none; a linear layer has as many
/// heads as the others.
void read_channel_attention(Keys& keys, Spec& spec) {
  spec.decay_by_channel = true;
  spec.linear_heads = spec.linear_key_heads = spec.heads;
  spec.linear_key = spec.linear_value = keys.required("kda.head_dim", 1, kMostHeadColumns);
  const auto list = keys.flags("attention.head_count_kv", static_cast<size_t>(spec.layers));
  if (!list) keys.refuse("attention.head_count_kv is no array: which layers are linear is not known");
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    spec.linear.push_back(list.has_value() && !(*list)[static_cast<size_t>(layer)]);
}

void read_delta_net(Keys& keys, Linear kind, Spec& spec) {
  spec.key_heads_in_turns = kind == Linear::InTurns;
  spec.gated_queries = true;
  spec.linear_key_heads = keys.required("ssm.group_count");
  spec.linear_heads = keys.required("ssm.time_step_rank");
  spec.linear_key = keys.required("ssm.state_size", 1, kMostHeadColumns);
  const int64_t inner = keys.required("ssm.inner_size");
  const int64_t heads = std::max<int64_t>(1, spec.linear_heads);
  if (heads % std::max<int64_t>(1, spec.linear_key_heads) != 0)
    keys.refuse("ssm.time_step_rank is {}, which {} groups do not divide", heads, spec.linear_key_heads);
  if (inner % heads != 0) keys.refuse("ssm.inner_size is {}, which {} heads do not divide", inner, heads);
  spec.linear_value = inner / heads;
  if (spec.linear_value > kMostHeadColumns)
    keys.refuse("ssm.inner_size is {}, expected at most {} columns a head", inner, kMostHeadColumns);
  const int64_t interval = keys.integer("full_attention_interval", 4, 1, 4096);
  if (auto list = keys.flags("attention.recurrent_layers", static_cast<size_t>(spec.layers))) {
    spec.linear = std::move(*list);
    return;
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) spec.linear.push_back((layer + 1) % interval != 0);
}

void read_linear_attention(Keys& keys, Linear kind, Spec& spec) {
  kind == Linear::Channels ? read_channel_attention(keys, spec) : read_delta_net(keys, kind, spec);
  spec.taps = keys.required("ssm.conv_kernel", 2, 64);
  if (spec.layers > 0 && spec.linear_layers() == spec.layers)
    keys.refuse("block_count is {}: every layer has linear attention, expected one that attends to all",
                spec.layers);
}

/// YaRN's frequencies, and the result: the root of what it multiplies the scores by, 1 + m ln(factor).
/// deepseek2 files give m as yarn_log_multiplier, and the rotation itself keeps magnitude 1 (DeepSeek-V2's
/// mscale == mscale_all_dim). Elsewhere queries and keys are both multiplied, by the paper's m of 0.1; every
/// column turns there, so that this too is a factor of the scores.
double read_yarn(Keys& keys, Spec& spec) {
  program::RopeParams& rope = spec.rope_params;
  rope.factor = keys.number("rope.scaling.factor", 1.0);
  rope.original_context = static_cast<double>(keys.required("rope.scaling.original_context_length"));
  rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0);
  rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0);
  if (rope.factor < 1.0) keys.refuse("rope.scaling.factor is {}, expected at least 1", rope.factor);
  if (!spec.is_latent() && spec.nope > 0) {
    keys.refuse("rope.scaling.type is \"yarn\", which is not supported where only {} of {} columns turn",
                spec.rope, spec.key());
  }
  if (spec.is_latent() && !keys.has("rope.scaling.yarn_log_multiplier"))
    keys.refuse("rope.scaling.yarn_log_multiplier is missing");
  if (keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0) {
    keys.refuse("rope.scaling.yarn_ext_factor other than 1 is not supported");
  }
  const double m = spec.is_latent() ? keys.number("rope.scaling.yarn_log_multiplier", 0.0) : 0.1;
  return keys.number("rope.scaling.attn_factor", 1.0) * (1.0 + m * std::log(std::max(1.0, rope.factor)));
}

/// All positions divided by a factor, which old files name otherwise; 0 is none.
void read_linear_stretch(Keys& keys, Spec& spec) {
  const double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0));
  keys.known({"rope.scaling.original_context_length"});  // it says nothing here
  if (factor == 0.0 || factor == 1.0) return;
  if (factor < 1.0) keys.refuse("rope.scaling.factor is {}, expected at least 1", factor);
  spec.rope_params.factor = factor;
  spec.rope_params.original_context = 0;
}

/// Rope frequencies and the attention scale.
void read_rope(Keys& keys, Spec& spec) {
  program::RopeParams& rope = spec.rope_params;
  rope.base = keys.number("rope.freq_base", 10000.0);
  if (rope.base <= 1.0) keys.refuse("rope.freq_base is {}, expected more than 1", rope.base);
  double mscale = 1.0;
  const std::string type =
      keys.string("rope.scaling.type", "linear");  // as llama.cpp takes files that do not say
  if (type == "yarn") {
    mscale = read_yarn(keys, spec);
  } else if (type == "linear") {
    read_linear_stretch(keys, spec);
  } else if (type == "none") {
    keys.known({"rope.scaling.original_context_length"});
  } else {
    keys.refuse("rope.scaling.type is \"{}\", expected \"none\", \"linear\" or \"yarn\"",
                gguf::printable(type));
  }
  // Of models that see images, too: a text's positions are the same in all sections.
  if (rope.pairs == program::RopePairs::Halves) keys.known({"rope.dimension_sections"});
  const auto key_columns = static_cast<double>(std::max<int64_t>(1, spec.key()));
  spec.attention_scale = static_cast<float>(mscale * mscale / std::sqrt(key_columns));
}

/// Mistral's: the steps are as long as the context before YaRN's stretch, unless a key says otherwise.
void read_temperature(Keys& keys, Spec& spec) {
  keys.known({"attention.temperature_length"});  // without a scale it says nothing
  spec.temperature = keys.number("attention.temperature_scale", 0.0);
  if (spec.temperature == 0.0) return;
  const int64_t original = keys.integer("rope.scaling.original_context_length", 0);
  const int64_t length = keys.integer("attention.temperature_length", original);
  spec.temperature_length = static_cast<double>(std::max<int64_t>(1, length));
  if (length < 1) keys.refuse("attention.temperature_length is missing");
}

bool any_tensor(const gguf::File& file, const std::string& prefix) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [&](const gguf::Tensor& tensor) { return tensor.name.starts_with(prefix); });
}

constexpr int64_t kMostPredicting = 16;

/// Blocks that come before those of multi-token prediction. block_count has these among it or not, as it
/// pleased the converter, and a file may have left them out; only they have nextn tensors.
int64_t trunk_layers(const gguf::File& file, int64_t blocks, int64_t predicting) {
  int64_t layers = blocks;
  for (; layers > std::max<int64_t>(1, blocks - kMostPredicting); --layers) {
    const std::string last = fmt::format("blk.{}.", layers - 1);
    const bool left_out = layers > blocks - predicting && !any_tensor(file, last);
    if (!left_out && !any_tensor(file, last + "nextn.")) break;
  }
  return layers;
}

bool any_selection_bias(const gguf::File& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [](const gguf::Tensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
}

void read_experts(const gguf::File& file, Keys& keys, bool normalised, Spec& spec) {
  spec.dense_layers = keys.integer("leading_dense_block_count", 0, 0, 4096);
  spec.experts = keys.integer("expert_count", 0);
  if (spec.experts == 0) {  // Youtu-LLM's conversions fill the others in all the same
    keys.known({"expert_used_count", "expert_shared_count", "expert_feed_forward_length",
                "expert_weights_norm", "expert_weights_scale", "expert_shared_feed_forward_length",
                "expert_gating_func", "expert_group_count", "expert_group_used_count"});
    return;
  }
  spec.experts_used = keys.required("expert_used_count", 1, spec.experts);
  spec.expert_feed_forward = keys.required("expert_feed_forward_length");
  // qwen's files give the width of all shared experts, and not how many there are.
  const int64_t shared = spec.expert_feed_forward * keys.integer("expert_shared_count", 0, 0, 4096);
  spec.shared_feed_forward = keys.integer("expert_shared_feed_forward_length", shared);
  spec.normalize_weights = keys.boolean("expert_weights_norm", normalised);
  // Youtu-LLM and other conversions write 0 or nothing where the weights are not scaled.
  const double scale = keys.number("expert_weights_scale", 1.0);
  spec.weights_scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  // GLM-4.7-Flash conversions of early 2026 do not say which gating they use; only sigmoid gating has a bias.
  // 3: softmax over the logits of those selected, which is softmax over all, normalised.
  const int64_t gating = keys.integer("expert_gating_func", 0, 0, 3);
  if (gating == 3) spec.normalize_weights = true;
  const bool sigmoid = gating == 0 ? any_selection_bias(file) : gating == 2;
  spec.gating = sigmoid ? program::Gating::Sigmoid : program::Gating::Softmax;
  spec.groups = std::max<int64_t>(1, keys.integer("expert_group_count", 1, 0, spec.experts));
  spec.groups_used = std::max<int64_t>(1, keys.integer("expert_group_used_count", 1, 0, spec.groups));
  if (spec.experts % spec.groups != 0) {
    keys.refuse("expert_group_count is {}, which does not divide {} experts", spec.groups, spec.experts);
  } else if (spec.experts_used > spec.experts / spec.groups * spec.groups_used) {
    keys.refuse("expert_used_count is {}, more than {} of {} groups hold", spec.experts_used,
                spec.groups_used, spec.groups);
  }
}

/// What general.type calls files of the format that are no models.
struct NoModel {
  std::string_view type;
  const char* what;
};
constexpr NoModel kNoModels[] = {{"adapter", "changes to a model (LoRA), to be merged into it first"},
                                 {"mmproj", "the part of a model that sees images"},
                                 {"imatrix", "statistics to quantise a model by"}};

std::string architecture_names() {
  std::string text;
  for (const Architecture& row : kArchitectures)
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", row.name);
  return text;
}

}  // namespace

Spec Spec::read(const gguf::File& file, Problems& problems) {
  Spec spec;
  std::string_view type;
  try {
    type = file.string("general.type").value_or("");
    spec.architecture = file.string("general.architecture").value_or("");
    spec.name = file.string("general.name").value_or("");
  } catch (const Error& error) {
    problems.add("{}", error.what());
  }
  const auto* no_model = std::ranges::find(kNoModels, type, &NoModel::type);
  if (no_model != std::end(kNoModels)) {
    problems.add("general.type is \"{}\": {}; expected a model", type, no_model->what);
    return spec;
  }
  const Architecture* architecture = find_architecture(spec.architecture);
  if (architecture == nullptr) {
    problems.add("general.architecture is \"{}\", expected one of {}", gguf::printable(spec.architecture),
                 architecture_names());
    return spec;
  }
  Keys keys(file, spec.architecture, problems);
  const int64_t blocks = keys.required("block_count", 1, 4096);
  spec.layers = trunk_layers(file, blocks, keys.integer("nextn_predict_layers", 0, 0, kMostPredicting));
  spec.context = keys.required("context_length", 1, int64_t{1} << 31);
  spec.dim = keys.required("embedding_length");
  spec.heads = keys.required("attention.head_count");
  spec.epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", 0.0));
  if (!(spec.epsilon > 0)) keys.refuse("attention.layer_norm_rms_epsilon is missing or not positive");
  spec.rope_params.pairs = architecture->pairs;
  spec.rope_params.whole_ramp = architecture->whole_ramp;
  spec.rope_params.turns = architecture->turns;
  architecture->latent ? read_latent_attention(keys, spec) : read_grouped_attention(keys, spec);
  if (architecture->linear != Linear::None) read_linear_attention(keys, architecture->linear, spec);
  if (architecture->window_period > 0) read_window(keys, architecture->window_period, spec);
  if (architecture->experts) read_experts(file, keys, architecture->normalised, spec);
  spec.expert_form = architecture->form;
  // Files of experts alone name a width that nothing has, or none.
  spec.feed_forward = spec.any_dense() ? keys.required("feed_forward_length") : 0;
  keys.known({"feed_forward_length"});
  read_rope(keys, spec);
  if (spec.is_latent()) read_temperature(keys, spec);
  keys.refuse_unread();
  return spec;
}

}  // namespace sluice::model
