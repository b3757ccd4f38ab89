// Which tensors a model has, and which of them gets which type.
#include <string>
#include <string_view>

#include "base/check.h"
#include "gguf/synth.h"

namespace sluice::gguf {
namespace {

using quant::Type;

constexpr SynthMix kMixes[] = {
    {"q4_0",
     "Q4_0; output Q6_K, shared experts Q5_K and Q6_K, k_b and v_b Q8_0, the first down matrices Q4_1", 2},
    {"q4_0_plain", "Q4_0; output Q6_K", 2},
    {"q4_k_m", "Q4_K; output, half of the down matrices and of grouped attention's values Q6_K", 15},
    {"q8_0", "Q8_0", 7},
    {"mxfp4", "MXFP4 for tensors of three dimensions, Q8_0 for the rest", 38},
    {"nvfp4",
     "NVFP4 with a scale a matrix for networks, grouped attention and what attention gives; Q8_0 for the "
     "rest",
     39},
    {"iq2_xxs", "IQ2_XXS for routed experts; output Q6_K, k_b and v_b Q8_0, Q4_K for the rest", 19},
    {"iq3_s", "the same with IQ3_S", 26},
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
         contains(row.name, "ffn_gate_inp") || contains(row.name, "ssm_conv1d");
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

/// As ModelOpt quantises: neither embeddings nor what makes latent rows or linear attention's states.
bool is_nvfp4(const SynthModel& model, const Row& row) {
  const auto ends = [&](const char* part) { return row.name.ends_with(part); };
  const bool grouped = model.kv_heads > 0 && (ends("attn_q") || ends("attn_k") || ends("attn_v"));
  return grouped || ends("attn_output") || contains(row.name, "ffn_");
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
  if (mix == "nvfp4") {
    if (is_nvfp4(model, row)) type = Type::NVFP4;
  } else if (mix == "mxfp4") {
    type = row.shape.size() == 3 ? Type::MXFP4 : Type::Q8_0;
  } else if (mix != "q8_0") {
    if (is_output(model, row)) {
      type = Type::Q6_K;
    } else if (mix == "q4_0") {
      type = q4_0_type(blocks, row);
    } else if (mix.starts_with("iq")) {
      if (row.shape.size() < 3) type = Type::Q4_K;
      if (contains(row.name, "_exps")) type = mix == "iq2_xxs" ? Type::IQ2_XXS : Type::IQ3_S;
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
  project("attn_q", (m.delta.interval > 0 ? 2 : 1) * m.heads * key);  // a gate behind each query
  project("attn_k", m.kv_heads * key);
  project("attn_v", m.kv_heads * m.value);
  if (m.head_norms) add("attn_q_norm", {key}), add("attn_k_norm", {key});
  add("attn_output", {m.heads * m.value, m.width});
  if (m.window == 0) return;
  add("attn_output", {m.width}, ".bias");
  add("attn_sinks", {m.heads});
}

void add_delta_net(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, const char* suffix = ".weight") {
    rows.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), layer, suffix});
  };
  const SynthModel::Delta& d = m.delta;
  const int64_t values = d.heads * d.value, columns = 2 * d.key_heads * d.key + values;
  add("attn_norm", {m.width});
  add("attn_qkv", {m.width, columns});
  add("attn_gate", {m.width, values});
  add("ssm_conv1d", {d.taps, columns});
  if (d.in_turns) {
    add("ssm_beta", {m.width, d.heads}), add("ssm_alpha", {m.width, d.heads});
  } else {
    add("ssm_ba", {m.width, 2 * d.heads});
  }
  add("ssm_a", {d.heads}, "");
  add("ssm_dt", {d.heads}, ".bias");
  add("ssm_norm", {d.value});
  add("ssm_out", {values, m.width});
}

void add_channel_attention(const SynthModel& m, int layer, std::vector<Row>& rows) {
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const char* suffix = ".weight") {
    rows.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), layer, suffix});
  };
  const SynthModel::Delta& d = m.delta;
  const int64_t columns = d.heads * d.key;
  add("attn_norm", {m.width});
  for (const std::string part : {"q", "k", "v"}) {
    add("attn_" + part, {m.width, columns});
    add("ssm_conv1d_" + part, {d.taps, columns});
  }
  for (const std::string gate : {"f", "g"}) {
    add("ssm_" + gate + "_a", {m.width, d.key});
    add("ssm_" + gate + "_b", {d.key, columns});
  }
  add("ssm_beta", {m.width, d.heads});
  add("ssm_a", {d.heads}, "");
  add("ssm_dt", {columns}, ".bias");
  add("ssm_norm", {d.value});
  add("attn_output", {columns, m.width});
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
  if (m.delta.interval > 0 && !m.delta.by_channel) add("ffn_gate_inp_shexp", {m.width});
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

std::span<const SynthMix> synth_mixes() { return kMixes; }

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
    // A block of multi-token prediction attends to all positions.
    const bool linear = layer < layers && model.is_linear(layer);
    const auto attention = linear && model.delta.by_channel ? add_channel_attention
                           : linear                         ? add_delta_net
                           : model.kv_heads > 0             ? add_grouped_attention
                                                            : add_latent_attention;
    attention(model, layer, rows);
    add_feed_forward(model, layer, rows);
  }
  if (options.prediction) add_prediction(model, layers, rows);
  WritePlan plan;
  plan.metadata = synth_metadata(options);
  for (const Row& row : rows) {
    // Types follow the whole model's rule, so that a cut file is the beginning of the whole.
    const Type type = pick_type(options, row);
    plan.tensors.push_back({row.name + row.suffix, type, row.shape});
    if (type == Type::NVFP4)
      plan.tensors.push_back({row.name + ".scale", Type::F32, {row.shape.size() > 2 ? row.shape[2] : 1}});
  }
  return plan;
}

}  // namespace sluice::gguf
