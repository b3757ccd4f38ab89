#include "model/spec.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {
namespace {

/// Reads "ARCHITECTURE.key" keys and notes what is wrong with them.
class Keys {
 public:
  Keys(const gguf::File& file, std::string architecture, Problems& problems)
      : file_(file), prefix_(std::move(architecture) + "."), problems_(problems) {}

  bool has(const std::string& key) const { return file_.find(prefix_ + key) != nullptr; }

  /// An integer in [least, most]; `absent` when there is no such key.
  int64_t integer(const std::string& key, int64_t absent, int64_t least = 0, int64_t most = kMost) {
    const auto value = read(&gguf::File::integer, key);
    if (!value) return absent;
    if (*value < least || *value > most) {
      problems_.add("{}{} is {}, expected {} to {}", prefix_, key, *value, least, most);
      return absent;
    }
    return *value;
  }
  int64_t required(const std::string& key, int64_t least = 1, int64_t most = kMost) {
    if (!has(key)) problems_.add("{}{} is missing", prefix_, key);
    return integer(key, 0, least, most);
  }
  double number(const std::string& key, double absent) {
    const double value = read(&gguf::File::number, key).value_or(absent);
    if (!std::isfinite(value)) problems_.add("{}{} is not finite", prefix_, key);
    return std::isfinite(value) ? value : absent;
  }
  bool boolean(const std::string& key, bool absent) {
    return read(&gguf::File::boolean, key).value_or(absent);
  }
  std::string string(const std::string& key, const std::string& absent) {
    return std::string(read(&gguf::File::string, key).value_or(absent));
  }

  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add("{}{}", prefix_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  static constexpr int64_t kMost = 1 << 24;

  template <typename Result>
  Result read(Result (gguf::File::*reader)(std::string_view) const, const std::string& key) {
    try {
      return (file_.*reader)(prefix_ + key);
    } catch (const Error& error) {
      problems_.add("{}", error.what());
      return std::nullopt;
    }
  }

  const gguf::File& file_;
  std::string prefix_;
  Problems& problems_;
};

void read_attention(Keys& keys, Spec& spec) {
  spec.heads = keys.required("attention.head_count");
  spec.kv_lora = keys.required("attention.kv_lora_rank");
  spec.rope = keys.required("rope.dimension_count", 2);
  if (spec.rope % 2 != 0) keys.refuse("rope.dimension_count is {}, expected an even number", spec.rope);
  // Files of today give the absorbed sizes as key_length and value_length and the heads' own with _mla; older
  // ones (DeepSeek-V2 conversions before 2025) have no _mla keys and the heads' own sizes in the plain ones.
  const bool absorbed = keys.has("attention.key_length_mla") && keys.has("attention.value_length_mla");
  const int64_t key = keys.required(absorbed ? "attention.key_length_mla" : "attention.key_length");
  spec.value = keys.required(absorbed ? "attention.value_length_mla" : "attention.value_length");
  spec.nope = key - spec.rope;
  if (key > 0 && spec.nope <= 0)
    keys.refuse("key length {} leaves nothing beside {} rope columns", key, spec.rope);
}

/// Rope frequencies and the attention scale: YaRN stretches the first and, through yarn_log_multiplier m,
/// scales the scores by (1 + m ln factor)^2; the rotation itself keeps magnitude 1 (DeepSeek-V2's mscale ==
/// mscale_all_dim).
void read_rope(Keys& keys, Spec& spec) {
  program::RopeParams& rope = spec.rope_params;
  rope.base = keys.number("rope.freq_base", 10000.0);
  if (rope.base <= 1.0) keys.refuse("rope.freq_base is {}, expected more than 1", rope.base);
  double mscale = 1.0;
  const std::string type = keys.string("rope.scaling.type", "none");
  if (type == "yarn") {
    rope.factor = keys.number("rope.scaling.factor", 1.0);
    rope.original_context = static_cast<double>(keys.required("rope.scaling.original_context_length"));
    rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0);
    rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0);
    if (rope.factor < 1.0) keys.refuse("rope.scaling.factor is {}, expected at least 1", rope.factor);
    if (!keys.has("rope.scaling.yarn_log_multiplier"))
      keys.refuse("rope.scaling.yarn_log_multiplier is missing");
    if (keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0) {
      keys.refuse("rope.scaling.yarn_ext_factor other than 1 is not supported");
    }
    mscale =
        keys.number("rope.scaling.attn_factor", 1.0) *
        (1.0 + keys.number("rope.scaling.yarn_log_multiplier", 0.0) * std::log(std::max(1.0, rope.factor)));
  } else if (type != "none") {
    keys.refuse("rope.scaling.type is \"{}\", expected \"none\" or \"yarn\"", type);
  }
  const auto key_columns = static_cast<double>(std::max<int64_t>(1, spec.nope + spec.rope));
  spec.attention_scale = static_cast<float>(mscale * mscale / std::sqrt(key_columns));
}

bool any_selection_bias(const gguf::File& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [](const gguf::Tensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
}

void read_experts(const gguf::File& file, Keys& keys, Spec& spec) {
  spec.experts = keys.integer("expert_count", 0);
  if (spec.experts == 0) return;
  spec.experts_used = keys.required("expert_used_count", 1, spec.experts);
  spec.experts_shared = keys.integer("expert_shared_count", 0);
  spec.expert_feed_forward = keys.required("expert_feed_forward_length");
  spec.normalize_weights = keys.boolean("expert_weights_norm", false);
  // Youtu-LLM and other conversions write 0 or nothing where the weights are not scaled.
  const double scale = keys.number("expert_weights_scale", 1.0);
  spec.weights_scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  // GLM-4.7-Flash conversions of early 2026 do not say which gating they use; only sigmoid gating has a bias.
  const int64_t gating = keys.integer("expert_gating_func", 0, 0, 2);
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

}  // namespace

Spec Spec::read(const gguf::File& file, Problems& problems) {
  Spec spec;
  try {
    spec.architecture = file.string("general.architecture").value_or("");
    spec.name = file.string("general.name").value_or("");
  } catch (const Error& error) {
    problems.add("{}", error.what());
  }
  if (spec.architecture != "deepseek2") {
    problems.add("general.architecture is \"{}\", expected \"deepseek2\"", spec.architecture);
    return spec;
  }
  Keys keys(file, spec.architecture, problems);
  const int64_t blocks = keys.required("block_count", 1, 4096);
  spec.layers = blocks - keys.integer("nextn_predict_layers", 0, 0, std::max<int64_t>(0, blocks - 1));
  spec.dense_layers = keys.integer("leading_dense_block_count", 0, 0, 4096);
  spec.context = keys.required("context_length", 1, int64_t{1} << 31);
  spec.dim = keys.required("embedding_length");
  spec.feed_forward = keys.integer("feed_forward_length", 0);
  spec.epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", 0.0));
  if (!(spec.epsilon > 0)) keys.refuse("attention.layer_norm_rms_epsilon is missing or not positive");
  read_attention(keys, spec);
  read_rope(keys, spec);
  read_experts(file, keys, spec);
  return spec;
}

}  // namespace sluice::model
