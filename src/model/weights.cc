#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

namespace sluice::model {
namespace {

class Finder {
 public:
  Finder(const gguf::File& file, const Spec& spec, program::Builder& builder, Problems& problems)
      : file_(file), spec_(spec), builder_(builder), problems_(problems) {}

  program::WeightBytes take_bytes() { return std::move(bytes_); }
  bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }

  /// One problem for all tensors that were neither found nor are known to be left aside: each of them would
  /// have changed the result.
  void refuse_unknown() {
    size_t count = 0;
    std::string first;
    bool scales = false;  // one problem for all of them, too
    for (const gguf::Tensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name) || is_left_aside(tensor.name)) continue;
      if (is_scale(tensor.name)) {
        if (!std::exchange(scales, true))
          problems_.add("{}: {}", gguf::printable(tensor.name),
                        has(weight_of(tensor.name)) ? "a scale of the whole tensor is not supported here"
                                                    : "the weight that it scales is not there");
        continue;
      }
      if (count++ == 0) first = gguf::printable(tensor.name);
    }
    if (count == 1) problems_.add("{}: it is not known what this tensor is for", first);
    if (count > 1)
      problems_.add("{} and {} more: it is not known what these tensors are for", first, count - 1);
  }

  /// A weight of [matrices, rows, columns]; kNoTensor and a problem when it is missing or another.
  TensorId find(const std::string& name, int64_t matrices, int64_t rows, int64_t columns) {
    const gguf::Tensor* tensor = file_.tensor(name);
    if (tensor == nullptr) {
      problems_.add("{} is missing", name);
      return kNoTensor;
    }
    return find_as(*tensor, {columns, rows, matrices, 1}, matrices, rows, columns);
  }

  /// The same of a tensor that lies in the file as one of this shape.
  TensorId find_as(const gguf::Tensor& found, const std::array<int64_t, 4>& shape, int64_t matrices,
                   int64_t rows, int64_t columns) {
    if (!is_as(found, shape, matrices, rows, columns)) return kNoTensor;
    return add(std::string(found.name), found.type, matrices, rows, columns, found.bytes);
  }

  /// Three weights of so many rows each (of so many numbers each: columns 1) that lie in one tensor, one
  /// below another.
  std::array<TensorId, 3> stacked(const std::string& name, const std::array<int64_t, 3>& rows,
                                  int64_t columns) {
    std::array<TensorId, 3> parts = {kNoTensor, kNoTensor, kNoTensor};
    const gguf::Tensor& tensor = *file_.tensor(name);
    const int64_t all = rows[0] + rows[1] + rows[2];
    const bool vectors = columns == 1;
    const int64_t all_rows = vectors ? 1 : all, all_columns = vectors ? all : columns;
    if (!is_as(tensor, {all_columns, all_rows, 1, 1}, 1, all_rows, all_columns)) return parts;
    const quant::TypeInfo& type = quant::type_info(tensor.type);
    if (std::ranges::any_of(rows, [&](int64_t count) { return count * columns % type.block != 0; })) {
      problems_.add("{}: queries, keys and values part within blocks of type {}", name, type.name);
      return parts;
    }
    size_t at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto bytes = static_cast<size_t>(quant::bytes_of(type, rows[i] * columns));
      parts[i] = add(fmt::format("{}:{}", name, "qkv"[i]), tensor.type, 1, vectors ? 1 : rows[i],
                     vectors ? rows[i] : columns, tensor.bytes.subspan(at, bytes));
      at += bytes;
    }
    return parts;
  }

  TensorId vector(const std::string& name, int64_t columns) { return find(name, 1, 1, columns); }
  TensorId optional_vector(const std::string& name, int64_t columns) {
    return has(name) ? vector(name, columns) : kNoTensor;
  }
  TensorId matrix(const std::string& name, int64_t rows, int64_t columns) {
    return find(name, 1, rows, columns);
  }

  /// A weight, if there is one, whose products the file may have a scale of: a number a matrix.
  TensorId scaled(TensorId weight) {
    if (weight == kNoTensor) return weight;
    const program::Tensor matrices = builder_.program()[weight];
    const std::string name = scale_of(matrices.name);
    const TensorId scale = optional_vector(name, matrices.shape[0]);
    if (scale == kNoTensor) return weight;
    if (builder_.program()[scale].type != quant::Type::F32) {
      problems_.add("{}: type {}, expected F32", name, quant::type_info(builder_.program()[scale].type).name);
    } else if (!all_finite(bytes_[static_cast<size_t>(scale)])) {
      problems_.add("{}: holds what is no finite number", name);
    }
    scales_[weight] = scale;
    return weight;
  }
  TensorId scaled_matrix(const std::string& name, int64_t rows, int64_t columns) {
    return scaled(matrix(name, rows, columns));
  }
  /// What scaled() has found since the last call.
  Scales take_scales() { return std::exchange(scales_, {}); }
  TensorId take_scale_of(TensorId weight) {
    const Scales scales = take_scales();
    const auto found = scales.find(weight);
    return found != scales.end() ? found->second : kNoTensor;
  }

  Layer layer(int64_t index) {
    block_ = fmt::format("blk.{}.", index);
    Layer l;
    l.attn_norm = vector(at("attn_norm"), spec_.dim);
    if (spec_.is_linear(index)) {
      spec_.decay_by_channel ? channel_attention(l) : delta_net(l);
    } else {
      spec_.is_latent() ? latent_attention(l) : grouped_attention(l);
    }
    // What glm4moe files call it: the norm of what attention leaves.
    const bool after_attention = !has(at("ffn_norm")) && has(at("post_attention_norm"));
    l.ffn_norm = vector(at(after_attention ? "post_attention_norm" : "ffn_norm"), spec_.dim);
    // A block behind the trunk may be dense though the trunk's last layers are not.
    const bool mixture = spec_.is_moe(index) && (index < spec_.layers || has(at("ffn_gate_inp")));
    if (mixture) {
      experts(l);
    } else {
      l.gate = scaled_matrix(at("ffn_gate"), spec_.feed_forward, spec_.dim);
      l.up = scaled_matrix(at("ffn_up"), spec_.feed_forward, spec_.dim);
      l.down = scaled_matrix(at("ffn_down"), spec_.dim, spec_.feed_forward);
    }
    l.scales = take_scales();
    return l;
  }

 private:
  /// Whether a tensor can be decoded and has this shape; a problem where not. The other numbers: what a
  /// message says was expected.
  bool is_as(const gguf::Tensor& tensor, const std::array<int64_t, 4>& shape, int64_t matrices, int64_t rows,
             int64_t columns) {
    used_.insert(tensor.name);
    const quant::TypeInfo& type = quant::type_info(tensor.type);
    if (type.decode == nullptr) {
      problems_.add("{}: type {} is not supported", tensor.name, type.name);
      return false;
    }
    if (tensor.shape == shape) return true;
    std::string expected = fmt::format("[{}", columns);
    if (rows > 1 || matrices > 1) expected += fmt::format(", {}", rows);
    if (matrices > 1) expected += fmt::format(", {}", matrices);
    problems_.add("{}: shape {}, expected {}]", tensor.name, gguf::shape_text(tensor), expected);
    return false;
  }
  TensorId add(const std::string& name, quant::Type type, int64_t matrices, int64_t rows, int64_t columns,
               std::span<const std::byte> bytes) {
    const TensorId id = builder_.weight(name, type, matrices, rows, columns);
    bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = bytes;
    return id;
  }
  std::string at(const char* name, const char* suffix = "weight") const {
    return fmt::format("{}{}.{}", block_, name, suffix);
  }
  TensorId view(TensorId base, const char* name, int64_t matrices, int64_t rows, int64_t first,
                int64_t stride) {
    if (base == kNoTensor) return kNoTensor;
    const TensorId id = builder_.weight_view(base, at(name), matrices, rows, first, stride);
    bytes_.resize(static_cast<size_t>(id) + 1);  // a view has no bytes of its own
    return id;
  }

  static bool is_scale(std::string_view name) {
    return name.ends_with(".scale") || name.ends_with(".input_scale");
  }
  /// The weight that a scale is of, and the other way round, by names.
  static std::string weight_of(std::string_view scale) {
    return std::string(scale.substr(0, scale.rfind('.'))) + ".weight";
  }
  static std::string scale_of(const std::string& weight) {
    return weight.substr(0, weight.rfind('.')) + ".scale";
  }
  static bool all_finite(std::span<const std::byte> floats) {
    for (size_t at = 0; at < floats.size(); at += sizeof(float)) {
      float number = 0;
      std::memcpy(&number, floats.data() + at, sizeof number);
      if (!std::isfinite(number)) return false;
    }
    return true;
  }

  /// Blocks of multi-token prediction (after the trunk); tables of rope angles, which are computed here; the
  /// unsplit kv_b that conversions of spring 2025 hold beside k_b and v_b; how FP4 activations would be
  /// scaled.
  bool is_left_aside(std::string_view name) const {
    if (name.ends_with(".input_scale") && has(weight_of(name))) return true;
    if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn_rot_embd.weight")) return true;
    if (!name.starts_with("blk.")) return false;
    const std::string block(name.substr(0, name.find('.', 4)));
    return has(block + ".nextn.eh_proj.weight") || (spec_.is_latent() && name == block + ".attn_kv_b.weight");
  }

  void grouped_attention(Layer& l) {
    const int64_t queries = spec_.heads * spec_.key(), keys = spec_.kv_heads * spec_.key(),
                  values = spec_.kv_heads * spec_.value;
    const int64_t gates = spec_.gated_queries ? spec_.heads * spec_.value : 0;
    // One below another (convert_hf_to_gguf.py --fuse-qkv); where others are linear, theirs have this name.
    const bool joined = spec_.linear.empty() && has(at("attn_qkv"));
    if (joined) {
      const auto parts = stacked(at("attn_qkv"), {queries + gates, keys, values}, spec_.dim);
      l.q = parts[0], l.k = parts[1], l.v = parts[2];
    } else {
      l.q = scaled_matrix(at("attn_q"), queries + gates, spec_.dim);
      l.k = scaled_matrix(at("attn_k"), keys, spec_.dim);
      l.v = scaled_matrix(at("attn_v"), values, spec_.dim);
    }
    if (joined && has(at("attn_qkv", "bias"))) {
      const auto parts = stacked(at("attn_qkv", "bias"), {queries, keys, values}, 1);
      l.q_bias = parts[0], l.k_bias = parts[1], l.v_bias = parts[2];
    } else {
      l.q_bias = optional_vector(at("attn_q", "bias"), queries);
      l.k_bias = optional_vector(at("attn_k", "bias"), keys);
      l.v_bias = optional_vector(at("attn_v", "bias"), values);
    }
    l.q_norm = optional_vector(at("attn_q_norm"), spec_.key());
    l.k_norm = optional_vector(at("attn_k_norm"), spec_.key());
    l.attn_output = scaled_matrix(at("attn_output"), spec_.dim, spec_.heads * spec_.value);
    l.attn_output_bias = optional_vector(at("attn_output", "bias"), spec_.dim);
    l.sinks = optional_vector(at("attn_sinks"), spec_.heads);
  }

  /// What both kinds of linear attention have.
  void linear_attention(Layer& l) {
    const int64_t heads = spec_.linear_heads;
    l.decay_rate = flat("ssm_a", heads);
    l.decay_bias = vector(at("ssm_dt", "bias"), spec_.decay_by_channel ? heads * spec_.linear_key : heads);
    l.linear_norm = vector(at("ssm_norm"), spec_.linear_value);
  }

  void delta_net(Layer& l) {
    const int64_t heads = spec_.linear_heads, values = heads * spec_.linear_value;
    if (has(at("ssm_in"))) {
      used_.insert(file_.tensor(at("ssm_in"))->name);
      problems_.add(
          "{}: queries, keys, values and gates in turns, as files of November 2025 have them, are "
          "not supported; expected attn_qkv and attn_gate",
          at("ssm_in"));
      return;
    }
    l.qkv = scaled_matrix(at("attn_qkv"), spec_.linear_columns(), spec_.dim);
    l.output_gate = scaled_matrix(at("attn_gate"), values, spec_.dim);
    l.conv = convolution("ssm_conv1d", spec_.linear_columns());
    if (has(at("ssm_ba"))) {
      l.beta_decay = scaled_matrix(at("ssm_ba"), 2 * heads, spec_.dim);
    } else {
      l.beta = scaled_matrix(at("ssm_beta"), heads, spec_.dim);
      l.decay = scaled_matrix(at("ssm_alpha"), heads, spec_.dim);
    }
    linear_attention(l);
    l.attn_output = scaled_matrix(at("ssm_out"), spec_.dim, values);
  }

  void channel_attention(Layer& l) {
    const int64_t heads = spec_.linear_heads, columns = heads * spec_.linear_key, rank = spec_.linear_key;
    l.q = scaled_matrix(at("attn_q"), columns, spec_.dim);
    l.k = scaled_matrix(at("attn_k"), columns, spec_.dim);
    l.v = scaled_matrix(at("attn_v"), columns, spec_.dim);
    l.q_conv = convolution("ssm_conv1d_q", columns);
    l.k_conv = convolution("ssm_conv1d_k", columns);
    l.v_conv = convolution("ssm_conv1d_v", columns);
    l.decay_a = matrix(at("ssm_f_a"), rank, spec_.dim);
    l.decay = matrix(at("ssm_f_b"), columns, rank);
    l.beta = matrix(at("ssm_beta"), heads, spec_.dim);
    l.output_gate_a = matrix(at("ssm_g_a"), rank, spec_.dim);
    l.output_gate = matrix(at("ssm_g_b"), columns, rank);
    linear_attention(l);
    l.attn_output = scaled_matrix(at("attn_output"), spec_.dim, columns);
  }

  /// [columns, taps]; files may have a dimension of 1 between the two.
  TensorId convolution(const char* name, int64_t columns) {
    const gguf::Tensor* tensor = file_.tensor(at(name));
    const bool between = tensor != nullptr && tensor->shape[1] == 1 && tensor->shape[2] == columns;
    return between ? find_as(*tensor, {spec_.taps, 1, columns, 1}, 1, columns, spec_.taps)
                   : matrix(at(name), columns, spec_.taps);
  }
  /// A vector without a suffix, which may lie as rows of one number.
  TensorId flat(const char* name, int64_t columns) {
    const std::string full = block_ + name;
    const gguf::Tensor* tensor = file_.tensor(full);
    const bool rows =
        tensor != nullptr && columns > 1 && tensor->shape[0] == 1 && tensor->type == quant::Type::F32;
    return rows ? find_as(*tensor, {1, columns, 1, 1}, 1, 1, columns) : vector(full, columns);
  }

  /// A matrix a head; the conversions of spring 2025 have the rows of all heads in one.
  TensorId matrix_a_head(const char* name, int64_t rows, int64_t columns) {
    const gguf::Tensor* tensor = file_.tensor(at(name));
    const std::array<int64_t, 4> together = {columns, spec_.heads * rows, 1, 1};
    return tensor != nullptr && tensor->shape == together
               ? find_as(*tensor, together, spec_.heads, rows, columns)
               : find(at(name), spec_.heads, rows, columns);
  }

  void latent_attention(Layer& l) {
    const int64_t query_columns = spec_.heads * spec_.key();
    if (spec_.q_lora > 0) {
      l.q_a = matrix(at("attn_q_a"), spec_.q_lora, spec_.dim);
      l.q_a_norm = vector(at("attn_q_a_norm"), spec_.q_lora);
      l.q = matrix(at("attn_q_b"), query_columns, spec_.q_lora);
    } else {
      l.q = matrix(at("attn_q"), query_columns, spec_.dim);
    }
    l.kv_a = matrix(at("attn_kv_a_mqa"), spec_.kv_lora + spec_.rope, spec_.dim);
    l.kv_a_norm = vector(at("attn_kv_a_norm"), spec_.kv_lora);
    if (has(at("attn_kv_b")) && !has(at("attn_k_b"))) {
      // The old layout: per head the nope rows of keys, then the rows of values. Keys lie transposed, which a
      // blocked type cannot mend without requantising, so k_b is read along its rows.
      const int64_t head_rows = spec_.nope + spec_.value;
      const TensorId both = matrix(at("attn_kv_b"), spec_.heads * head_rows, spec_.kv_lora);
      l.k_b = view(both, "attn_kv_b:k", spec_.heads, spec_.nope, 0, head_rows);
      l.v_b = view(both, "attn_kv_b:v", spec_.heads, spec_.value, spec_.nope, head_rows);
      l.k_b_reduce = program::Reduce::Rows;
    } else {
      l.k_b = matrix_a_head("attn_k_b", spec_.kv_lora, spec_.nope);
      l.v_b = matrix_a_head("attn_v_b", spec_.value, spec_.kv_lora);
    }
    l.attn_output = scaled_matrix(at("attn_output"), spec_.dim, spec_.heads * spec_.value);
  }

  void experts(Layer& l) {
    const int64_t width = spec_.expert_feed_forward;
    l.router = matrix(at("ffn_gate_inp"), spec_.experts, spec_.dim);
    l.router_bias = optional_vector(at("exp_probs_b", "bias"), spec_.experts);
    l.logit_bias = optional_vector(at("ffn_gate_inp", "bias"), spec_.experts);
    if (has(at("ffn_gate_up_exps"))) {  // each expert's gate rows, then its up rows
      const TensorId both = find(at("ffn_gate_up_exps"), spec_.experts, 2 * width, spec_.dim);
      l.expert_gate = view(both, "ffn_gate_up_exps:gate", spec_.experts, width, 0, 2 * width);
      l.expert_up = view(both, "ffn_gate_up_exps:up", spec_.experts, width, width, 2 * width);
    } else if (has(at("ffn_up_gate_exps"))) {  // ik_llama.cpp's merge
      used_.insert(file_.tensor(at("ffn_up_gate_exps"))->name);
      problems_.add("{}: has its up rows first; only ffn_gate_up_exps, gate rows first, is supported",
                    at("ffn_up_gate_exps"));
    } else {
      l.expert_gate = scaled(find(at("ffn_gate_exps"), spec_.experts, width, spec_.dim));
      l.expert_up = scaled(find(at("ffn_up_exps"), spec_.experts, width, spec_.dim));
    }
    l.expert_down = scaled(find(at("ffn_down_exps"), spec_.experts, spec_.dim, width));
    if (has(at("ffn_gate_exps", "bias")) || has(at("ffn_up_exps", "bias"))) {
      l.gate_bias = matrix(at("ffn_gate_exps", "bias"), spec_.experts, width);
      l.up_bias = matrix(at("ffn_up_exps", "bias"), spec_.experts, width);
    }
    if (has(at("ffn_down_exps", "bias")))
      l.down_bias = matrix(at("ffn_down_exps", "bias"), spec_.experts, spec_.dim);
    const int64_t shared = spec_.shared_feed_forward;
    if (shared == 0) return;
    if (has(at("ffn_gate_inp_shexp"))) l.shared_router = matrix(at("ffn_gate_inp_shexp"), 1, spec_.dim);
    l.shared_gate = scaled_matrix(at("ffn_gate_shexp"), shared, spec_.dim);
    l.shared_up = scaled_matrix(at("ffn_up_shexp"), shared, spec_.dim);
    l.shared_down = scaled_matrix(at("ffn_down_shexp"), spec_.dim, shared);
  }

  const gguf::File& file_;
  const Spec& spec_;
  program::Builder& builder_;
  Problems& problems_;
  program::WeightBytes bytes_;
  std::set<std::string_view> used_;
  Scales scales_;
  std::string block_;
};

}  // namespace

Weights find_weights(const gguf::File& file, Spec& spec, program::Builder& builder, Problems& problems) {
  if (const gguf::Tensor* q_a = file.tensor("blk.0.attn_q_a.weight")) spec.q_lora = q_a->shape[1];
  if (const gguf::Tensor* table = file.tensor("token_embd.weight")) spec.vocabulary = table->shape[1];
  Finder finder(file, spec, builder, problems);
  Weights weights;
  weights.token_embedding = finder.matrix("token_embd.weight", spec.vocabulary, spec.dim);
  weights.output_norm = finder.vector("output_norm.weight", spec.dim);
  // Without an output matrix the token table is used once more.
  weights.output = finder.has("output.weight")
                       ? finder.scaled_matrix("output.weight", spec.vocabulary, spec.dim)
                       : weights.token_embedding;
  weights.output_scale = finder.take_scale_of(weights.output);
  weights.rope_factors = finder.optional_vector("rope_freqs.weight", spec.rope / 2);
  for (int64_t i = 0; i < spec.layers; ++i) weights.layers.push_back(finder.layer(i));
  finder.refuse_unknown();
  weights.bytes = finder.take_bytes();
  return weights;
}

namespace {

std::string prediction_name(const Spec& spec, const char* name) {
  return fmt::format("blk.{}.nextn.{}.weight", spec.layers, name);
}

}  // namespace

bool has_prediction(const gguf::File& file, const Spec& spec) {
  return file.tensor(prediction_name(spec, "eh_proj")) != nullptr;
}

PredictionWeights find_prediction(const gguf::File& file, const Spec& spec, program::Builder& builder,
                                  Problems& problems) {
  Finder finder(file, spec, builder, problems);
  const auto own_or = [&](const char* own, const char* of_the_model) {
    const std::string name = prediction_name(spec, own);
    return finder.has(name) ? name : std::string(of_the_model);
  };
  PredictionWeights weights;
  weights.embedding_norm = finder.vector(prediction_name(spec, "enorm"), spec.dim);
  weights.hidden_norm = finder.vector(prediction_name(spec, "hnorm"), spec.dim);
  weights.projection = finder.scaled_matrix(prediction_name(spec, "eh_proj"), spec.dim, 2 * spec.dim);
  weights.projection_scale = finder.take_scale_of(weights.projection);
  Weights& block = weights.block;
  const std::string table = own_or("embed_tokens", "token_embd.weight");
  const std::string head =
      own_or("shared_head_head", finder.has("output.weight") ? "output.weight" : table.c_str());
  block.token_embedding = finder.matrix(table, spec.vocabulary, spec.dim);
  block.output =
      head == table ? block.token_embedding : finder.scaled_matrix(head, spec.vocabulary, spec.dim);
  block.output_scale = finder.take_scale_of(block.output);
  block.output_norm = finder.vector(own_or("shared_head_norm", "output_norm.weight"), spec.dim);
  block.rope_factors = finder.optional_vector("rope_freqs.weight", spec.rope / 2);
  block.layers.push_back(finder.layer(spec.layers));
  block.bytes = finder.take_bytes();
  return weights;
}

}  // namespace sluice::model
