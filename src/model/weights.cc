#include "model/weights.h"

#include <fmt/format.h>

namespace sluice::model {
namespace {

class Finder {
 public:
  Finder(const gguf::File& file, const Spec& spec, program::Builder& builder, Problems& problems)
      : file_(file), spec_(spec), builder_(builder), problems_(problems) {}

  program::WeightBytes take_bytes() { return std::move(bytes_); }
  bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }

  /// A weight of [matrices, rows, columns]; kNoTensor and a problem when it is missing or another.
  TensorId find(const std::string& name, int64_t matrices, int64_t rows, int64_t columns) {
    const gguf::Tensor* tensor = file_.tensor(name);
    if (tensor == nullptr) {
      problems_.add("{} is missing", name);
      return kNoTensor;
    }
    const quant::TypeInfo& type = quant::type_info(tensor->type);
    if (type.decode == nullptr) {
      problems_.add("{}: type {} is not supported", name, type.name);
      return kNoTensor;
    }
    if (tensor->shape != std::array<int64_t, 4>{columns, rows, matrices, 1}) {
      std::string expected = fmt::format("[{}", columns);
      if (rows > 1 || matrices > 1) expected += fmt::format(", {}", rows);
      if (matrices > 1) expected += fmt::format(", {}", matrices);
      problems_.add("{}: shape {}, expected {}]", name, gguf::shape_text(*tensor), expected);
      return kNoTensor;
    }
    const TensorId id = builder_.weight(name, tensor->type, matrices, rows, columns);
    bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = tensor->bytes;
    return id;
  }

  TensorId vector(const std::string& name, int64_t columns) { return find(name, 1, 1, columns); }
  TensorId matrix(const std::string& name, int64_t rows, int64_t columns) {
    return find(name, 1, rows, columns);
  }

  Layer layer(int64_t index) {
    block_ = fmt::format("blk.{}.", index);
    Layer l;
    l.attn_norm = vector(at("attn_norm"), spec_.dim);
    attention(l);
    l.ffn_norm = vector(at("ffn_norm"), spec_.dim);
    if (spec_.is_moe(index)) {
      experts(l);
    } else {
      l.gate = matrix(at("ffn_gate"), spec_.feed_forward, spec_.dim);
      l.up = matrix(at("ffn_up"), spec_.feed_forward, spec_.dim);
      l.down = matrix(at("ffn_down"), spec_.dim, spec_.feed_forward);
    }
    return l;
  }

 private:
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

  void attention(Layer& l) {
    const int64_t query_columns = spec_.heads * (spec_.nope + spec_.rope);
    if (spec_.q_lora > 0) {
      l.q_a = matrix(at("attn_q_a"), spec_.q_lora, spec_.dim);
      l.q_a_norm = vector(at("attn_q_a_norm"), spec_.q_lora);
      l.q = matrix(at("attn_q_b"), query_columns, spec_.q_lora);
    } else {
      l.q = matrix(at("attn_q"), query_columns, spec_.dim);
    }
    l.kv_a = matrix(at("attn_kv_a_mqa"), spec_.kv_lora + spec_.rope, spec_.dim);
    l.kv_a_norm = vector(at("attn_kv_a_norm"), spec_.kv_lora);
    if (has(at("attn_kv_b"))) {
      // The old layout: per head the nope rows of keys, then the rows of values. Keys lie transposed, which a
      // blocked type cannot mend without requantising, so k_b is read along its rows.
      const int64_t head_rows = spec_.nope + spec_.value;
      const TensorId both = matrix(at("attn_kv_b"), spec_.heads * head_rows, spec_.kv_lora);
      l.k_b = view(both, "attn_kv_b:k", spec_.heads, spec_.nope, 0, head_rows);
      l.v_b = view(both, "attn_kv_b:v", spec_.heads, spec_.value, spec_.nope, head_rows);
      l.k_b_reduce = program::Reduce::Rows;
    } else {
      l.k_b = find(at("attn_k_b"), spec_.heads, spec_.kv_lora, spec_.nope);
      l.v_b = find(at("attn_v_b"), spec_.heads, spec_.value, spec_.kv_lora);
    }
    l.attn_output = matrix(at("attn_output"), spec_.dim, spec_.heads * spec_.value);
  }

  void experts(Layer& l) {
    const int64_t width = spec_.expert_feed_forward;
    l.router = matrix(at("ffn_gate_inp"), spec_.experts, spec_.dim);
    if (has(at("exp_probs_b", "bias"))) l.router_bias = vector(at("exp_probs_b", "bias"), spec_.experts);
    if (has(at("ffn_gate_up_exps"))) {  // each expert's gate rows, then its up rows
      const TensorId both = find(at("ffn_gate_up_exps"), spec_.experts, 2 * width, spec_.dim);
      l.expert_gate = view(both, "ffn_gate_up_exps:gate", spec_.experts, width, 0, 2 * width);
      l.expert_up = view(both, "ffn_gate_up_exps:up", spec_.experts, width, width, 2 * width);
    } else {
      l.expert_gate = find(at("ffn_gate_exps"), spec_.experts, width, spec_.dim);
      l.expert_up = find(at("ffn_up_exps"), spec_.experts, width, spec_.dim);
    }
    l.expert_down = find(at("ffn_down_exps"), spec_.experts, spec_.dim, width);
    if (spec_.experts_shared == 0) return;
    const int64_t shared = width * spec_.experts_shared;
    l.shared_gate = matrix(at("ffn_gate_shexp"), shared, spec_.dim);
    l.shared_up = matrix(at("ffn_up_shexp"), shared, spec_.dim);
    l.shared_down = matrix(at("ffn_down_shexp"), spec_.dim, shared);
  }

  const gguf::File& file_;
  const Spec& spec_;
  program::Builder& builder_;
  Problems& problems_;
  program::WeightBytes bytes_;
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
  weights.output = finder.has("output.weight") ? finder.matrix("output.weight", spec.vocabulary, spec.dim)
                                               : weights.token_embedding;
  for (int64_t i = 0; i < spec.layers; ++i) weights.layers.push_back(finder.layer(i));
  weights.bytes = finder.take_bytes();
  return weights;
}

}  // namespace sluice::model
