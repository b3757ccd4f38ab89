// The models' shapes and which tensor gets which type.
#include <string>
#include <string_view>

#include "base/check.h"
#include "gguf/synth.h"

namespace sluice::gguf {
namespace {

using quant::Type;

constexpr SynthModel kModels[] = {
    {
        .name = "glm-4.7-flash",
        .title = "GLM-4.7-Flash",
        .pretokenizer = "glm4",
        .layers = 47,
        .dense_layers = 1,
        .vocabulary = 154880,
        .context = 202752,
        .width = 2048,
        .dense_width = 10240,
        .heads = 20,
        .q_rank = 768,
        .kv_rank = 512,
        .nope = 192,
        .rope = 64,
        .value = 256,
        .experts = 64,
        .experts_used = 4,
        .experts_shared = 1,
        .expert_width = 1536,
        .sigmoid_gating = true,
        .normalised_weights = true,
        .router_bias = true,
        .tied_output = false,
        .has_prediction = true,
        .expert_scale = 1.8f,
        .rope_base = 1e6f,
        .norm_epsilon = 1e-5f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
    },
    {
        .name = "deepseek-v2-lite",
        .title = "DeepSeek-V2-Lite",
        .pretokenizer = "deepseek-llm",
        .layers = 27,
        .dense_layers = 1,
        .vocabulary = 102400,
        .context = 163840,
        .width = 2048,
        .dense_width = 10944,
        .heads = 16,
        .q_rank = 0,
        .kv_rank = 512,
        .nope = 128,
        .rope = 64,
        .value = 128,
        .experts = 64,
        .experts_used = 6,
        .experts_shared = 2,
        .expert_width = 1408,
        .sigmoid_gating = false,
        .normalised_weights = false,
        .router_bias = false,
        .tied_output = false,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 1e4f,
        .norm_epsilon = 1e-6f,
        .yarn_factor = 40,
        .yarn_log_multiplier = 0.0707f,
        .yarn_context = 4096,
    },
    {
        .name = "youtu-llm-2b",
        .title = "Youtu-LLM-2B",
        .pretokenizer = "youtu",
        .layers = 32,
        .dense_layers = 32,
        .vocabulary = 128256,
        .context = 131072,
        .width = 2048,
        .dense_width = 6144,
        .heads = 16,
        .q_rank = 1536,
        .kv_rank = 512,
        .nope = 128,
        .rope = 64,
        .value = 128,
        .experts = 0,
        .experts_used = 0,
        .experts_shared = 0,
        .expert_width = 6144,
        .sigmoid_gating = false,
        .normalised_weights = false,
        .router_bias = false,
        .tied_output = true,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 1.6e6f,
        .norm_epsilon = 1e-6f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
    },
    {
        .name = "qwen3-30b-a3b",
        .title = "Qwen3-30B-A3B",
        .pretokenizer = "qwen2",
        .layers = 48,
        .dense_layers = 0,
        .vocabulary = 151936,
        .context = 40960,
        .width = 2048,
        .dense_width = 6144,
        .heads = 32,
        .q_rank = 0,
        .kv_rank = 0,
        .nope = 0,
        .rope = 128,
        .value = 128,
        .experts = 128,
        .experts_used = 8,
        .experts_shared = 0,
        .expert_width = 768,
        .sigmoid_gating = false,
        .normalised_weights = true,
        .router_bias = false,
        .tied_output = false,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 1e6f,
        .norm_epsilon = 1e-6f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
        .architecture = "qwen3moe",
        .kv_heads = 4,
        .head_norms = true,
    },
    {
        .name = "glm-4.5-air",
        .title = "GLM-4.5-Air",
        .pretokenizer = "glm4",
        .layers = 46,
        .dense_layers = 1,
        .vocabulary = 151552,
        .context = 131072,
        .width = 4096,
        .dense_width = 10944,
        .heads = 96,
        .q_rank = 0,
        .kv_rank = 0,
        .nope = 64,
        .rope = 64,
        .value = 128,
        .experts = 128,
        .experts_used = 8,
        .experts_shared = 1,
        .expert_width = 1408,
        .sigmoid_gating = true,
        .normalised_weights = true,
        .router_bias = true,
        .tied_output = false,
        .has_prediction = true,
        .expert_scale = 1.0f,
        .rope_base = 1e6f,
        .norm_epsilon = 1e-5f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
        .architecture = "glm4moe",
        .kv_heads = 8,
        .projection_biases = true,
        .feed_forward_norm = "post_attention_norm",
    },
    {
        .name = "gpt-oss-20b",
        .title = "gpt-oss-20b",
        .pretokenizer = "gpt-4o",
        .layers = 24,
        .dense_layers = 0,
        .vocabulary = 201088,
        .context = 131072,
        .width = 2880,
        .dense_width = 2880,
        .heads = 64,
        .q_rank = 0,
        .kv_rank = 0,
        .nope = 0,
        .rope = 64,
        .value = 64,
        .experts = 32,
        .experts_used = 4,
        .experts_shared = 0,
        .expert_width = 2880,
        .sigmoid_gating = false,
        .normalised_weights = true,
        .router_bias = false,
        .tied_output = false,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 1.5e5f,
        .norm_epsilon = 1e-5f,
        .yarn_factor = 32,
        .yarn_log_multiplier = 0,
        .yarn_context = 4096,
        .architecture = "gpt-oss",
        .kv_heads = 8,
        .projection_biases = true,
        .feed_forward_norm = "post_attention_norm",
        .window = 128,
    },
    {
        .name = "qwen3-8b",
        .title = "Qwen3-8B",
        .pretokenizer = "qwen2",
        .layers = 36,
        .dense_layers = 36,
        .vocabulary = 151936,
        .context = 40960,
        .width = 4096,
        .dense_width = 12288,
        .heads = 32,
        .q_rank = 0,
        .kv_rank = 0,
        .nope = 0,
        .rope = 128,
        .value = 128,
        .experts = 0,
        .experts_used = 0,
        .experts_shared = 0,
        .expert_width = 0,
        .sigmoid_gating = false,
        .normalised_weights = false,
        .router_bias = false,
        .tied_output = false,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 1e6f,
        .norm_epsilon = 1e-6f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
        .architecture = "qwen3",
        .kv_heads = 8,
        .head_norms = true,
    },
    {
        .name = "llama-3.1-8b",
        .title = "Llama-3.1-8B",
        .pretokenizer = "llama-bpe",
        .layers = 32,
        .dense_layers = 32,
        .vocabulary = 128256,
        .context = 131072,
        .width = 4096,
        .dense_width = 14336,
        .heads = 32,
        .q_rank = 0,
        .kv_rank = 0,
        .nope = 0,
        .rope = 128,
        .value = 128,
        .experts = 0,
        .experts_used = 0,
        .experts_shared = 0,
        .expert_width = 0,
        .sigmoid_gating = false,
        .normalised_weights = false,
        .router_bias = false,
        .tied_output = false,
        .has_prediction = false,
        .expert_scale = 1.0f,
        .rope_base = 5e5f,
        .norm_epsilon = 1e-5f,
        .yarn_factor = 0,
        .yarn_log_multiplier = 0,
        .yarn_context = 0,
        .architecture = "llama",
        .kv_heads = 8,
    },
};

constexpr SynthMix kMixes[] = {
    {"q4_0",
     "Q4_0; output Q6_K, shared experts Q5_K and Q6_K, k_b and v_b Q8_0, the first down matrices Q4_1", 2},
    {"q4_0_plain", "Q4_0; output Q6_K", 2},
    {"q4_k_m", "Q4_K; output, half of the down matrices and of grouped attention's values Q6_K", 15},
    {"q8_0", "Q8_0", 7},
    {"mxfp4", "MXFP4 for tensors of three dimensions, Q8_0 for the rest", 38},
};

/// One tensor on its way into the plan.
struct Row {
  std::string name;  ///< without the suffix
  std::vector<int64_t> shape;
  int layer = -1;
  const char* suffix = ".weight";
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Norms, biases and the router are never quantised.
bool stays_f32(const Row& row) {
  return row.shape.size() == 1 || row.suffix == std::string_view(".bias") ||
         contains(row.name, "ffn_gate_inp");
}

bool is_output(const SynthModel& model, const Row& row) {
  return row.name == (model.tied_output ? "token_embd" : "output");
}

Type q4_0_type(int blocks, const Row& row) {
  if (contains(row.name, "_shexp")) return contains(row.name, "ffn_down") ? Type::Q6_K : Type::Q5_K;
  if (contains(row.name, "attn_k_b") || contains(row.name, "attn_v_b")) return Type::Q8_0;
  if (contains(row.name, "ffn_down") && row.layer < blocks / 8) return Type::Q4_1;
  return Type::Q4_0;
}

/// The down matrices of the first and last eighth and of every third layer between get more bits, and so do
/// the values of grouped attention.
Type q4_k_m_type(int blocks, const Row& row) {
  const int eighth = blocks / 8, layer = row.layer;
  const bool more = layer < eighth || layer >= 7 * blocks / 8 || (layer - eighth) % 3 == 2;
  const bool wanted = contains(row.name, "ffn_down") || row.name.ends_with("attn_v");
  return wanted && more ? Type::Q6_K : Type::Q4_K;
}

/// The type for rows that are no multiple of the wanted type's block.
Type fallback(Type type) {
  switch (type) {
    case Type::Q4_K: return Type::Q5_0;
    case Type::Q5_K: return Type::Q5_1;
    default: return Type::Q8_0;
  }
}

Type pick_type(const SynthOptions& options, const Row& row) {
  const SynthModel& model = *options.model;
  const std::string_view mix = options.mix->name;
  // Eighths are counted over all blocks, that of prediction included where the file has it.
  const int blocks = model.layers + (options.prediction ? 1 : 0);
  if (stays_f32(row)) return Type::F32;
  Type type = Type::Q8_0;
  if (mix == "mxfp4") {
    type = row.shape.size() == 3 ? Type::MXFP4 : Type::Q8_0;
  } else if (mix != "q8_0") {
    if (is_output(model, row)) {
      type = Type::Q6_K;
    } else if (mix == "q4_0") {
      type = q4_0_type(blocks, row);
    } else {
      type = mix == "q4_k_m" ? q4_k_m_type(blocks, row) : Type::Q4_0;
    }
  }
  return row.shape[0] % quant::type_info(type).block == 0 ? type : fallback(type);
}

void add_grouped_attention(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, const char* suffix = ".weight") {
    rows.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), layer, suffix});
  };
  const auto project = [&](const char* name, int64_t rows_out) {
    add(name, {m.width, rows_out});
    if (m.projection_biases) add(name, {rows_out}, ".bias");
  };
  const int64_t key = m.nope + m.rope;
  add("attn_norm", {m.width});
  project("attn_q", m.heads * key);
  project("attn_k", m.kv_heads * key);
  project("attn_v", m.kv_heads * m.value);
  if (m.head_norms) add("attn_q_norm", {key}), add("attn_k_norm", {key});
  add("attn_output", {m.heads * m.value, m.width});
  if (m.window == 0) return;
  add("attn_output", {m.width}, ".bias");
  add("attn_sinks", {m.heads});
}

void add_latent_attention(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    rows.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), layer});
  };
  add("attn_norm", {m.width});
  if (m.q_rank > 0) {
    add("attn_q_a", {m.width, m.q_rank});
    add("attn_q_a_norm", {m.q_rank});
    add("attn_q_b", {m.q_rank, m.heads * (m.nope + m.rope)});
  } else {
    add("attn_q", {m.width, m.heads * (m.nope + m.rope)});
  }
  add("attn_kv_a_mqa", {m.width, m.kv_rank + m.rope});
  add("attn_kv_a_norm", {m.kv_rank});
  add("attn_k_b", {m.nope, m.kv_rank, m.heads});
  add("attn_v_b", {m.kv_rank, m.value, m.heads});
  add("attn_output", {m.heads * m.value, m.width});
}

void add_feed_forward(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, const char* suffix = ".weight") {
    rows.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), layer, suffix});
  };
  add(m.feed_forward_norm, {m.width});
  if (layer < m.dense_layers) {
    add("ffn_gate", {m.width, m.dense_width});
    add("ffn_up", {m.width, m.dense_width});
    add("ffn_down", {m.dense_width, m.width});
    return;
  }
  const int64_t shared = m.expert_width * m.experts_shared;
  add("ffn_gate_inp", {m.width, m.experts});
  if (m.router_bias) add("exp_probs_b", {m.experts}, ".bias");
  add("ffn_gate_exps", {m.width, m.expert_width, m.experts});
  add("ffn_up_exps", {m.width, m.expert_width, m.experts});
  add("ffn_down_exps", {m.expert_width, m.width, m.experts});
  if (m.window > 0) {
    add("ffn_gate_inp", {m.experts}, ".bias");
    add("ffn_gate_exps", {m.expert_width, m.experts}, ".bias");
    add("ffn_up_exps", {m.expert_width, m.experts}, ".bias");
    add("ffn_down_exps", {m.width, m.experts}, ".bias");
  }
  if (shared == 0) return;
  add("ffn_gate_shexp", {m.width, shared});
  add("ffn_up_shexp", {m.width, shared});
  add("ffn_down_shexp", {shared, m.width});
}

/// What a block of multi-token prediction has besides a layer's tensors.
void add_prediction(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    rows.push_back({fmt::format("blk.{}.nextn.{}", layer, name), std::move(shape), layer});
  };
  add("eh_proj", {2 * m.width, m.width});
  add("enorm", {m.width});
  add("hnorm", {m.width});
  add("embed_tokens", {m.width, m.vocabulary});
  add("shared_head_head", {m.width, m.vocabulary});
  add("shared_head_norm", {m.width});
}

}  // namespace

std::span<const SynthModel> synth_models() { return kModels; }
std::span<const SynthMix> synth_mixes() { return kMixes; }

const SynthModel* find_synth_model(const std::string& name) {
  for (const SynthModel& model : kModels) {
    if (name == model.name) return &model;
  }
  return nullptr;
}

const SynthMix* find_synth_mix(const std::string& name) {
  for (const SynthMix& mix : kMixes) {
    if (name == mix.name) return &mix;
  }
  return nullptr;
}

WritePlan plan_synth(const SynthOptions& options) {
  const SynthModel& model = *options.model;
  CHECK(options.layers >= 0 && options.layers <= model.layers, "{} layers of {}", options.layers, model.name);
  std::vector<Row> rows;
  rows.push_back({"token_embd", {model.width, model.vocabulary}});
  rows.push_back({"output_norm", {model.width}});
  if (!model.tied_output) rows.push_back({"output", {model.width, model.vocabulary}});
  CHECK(!options.prediction || model.has_prediction, "{}", model.name);
  const int layers = options.layers > 0 ? options.layers : model.layers;
  for (int layer = 0; layer < layers + (options.prediction ? 1 : 0); ++layer) {
    model.kv_heads > 0 ? add_grouped_attention(model, layer, rows) : add_latent_attention(model, layer, rows);
    add_feed_forward(model, layer, rows);
  }
  if (options.prediction) add_prediction(model, layers, rows);
  WritePlan plan;
  plan.metadata = synth_metadata(options);
  for (const Row& row : rows) {
    // Types follow the whole model's rule, so that a cut file is the beginning of the whole.
    const Type type = pick_type(options, row);
    plan.tensors.push_back({row.name + row.suffix, type, row.shape});
  }
  return plan;
}

}  // namespace sluice::gguf
