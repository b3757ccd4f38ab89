#include "model/build.h"

namespace sluice::model {
namespace {

using program::Builder;
using program::kStepRows;

/// How rows enter the cache of a layer and become queries in latent space.
program::MlaQuery latent_query(const Spec& s, const Weights& all, const Layer& w, TensorId cache,
                               int32_t layer) {
  program::MlaQuery query{.kv_norm = {w.kv_a_norm},
                          .k_b = {w.k_b},
                          .factors = {all.rope_factors},
                          .cache = {cache},
                          .rope = s.rope_params,
                          .k_b_reduce = w.k_b_reduce,
                          .epsilon = s.epsilon,
                          .cache_layer = layer};
  if (s.q_lora > 0) query.q_norm = {w.q_a_norm}, query.q = {w.q};
  return query;
}

/// Multi-head latent attention in its absorbed form: queries go into the latent space, where keys and values
/// are one.
TensorId latent_attention(Builder& b, const Spec& s, const Weights& all, const Layer& w, TensorId cache,
                          int32_t layer, TensorId x) {
  // Of the normed row: a low-rank query, or the queries themselves; and the latent with its key beside it.
  const bool low_rank = s.q_lora > 0;
  program::NormMlaHeads op;
  op.products = {
      .in = {x}, .norm = {w.attn_norm}, .a = {low_rank ? w.q_a : w.q}, .b = {w.kv_a}, .epsilon = s.epsilon};
  const TensorId values = b.activation("values", kStepRows, s.heads, s.value);
  op.heads = {.query = latent_query(s, all, w, cache, layer),
              .v_b = {w.v_b},
              .out = {values},
              .scale = s.attention_scale};
  b.emit(op);
  return b.matmul_add(values, w.attn_output, x);
}

/// The same of a model whose queries weigh more by position, for which the fused ops have no place.
TensorId tempered_latent_attention(Builder& b, const Spec& s, const Weights& all, const Layer& w,
                                   TensorId cache, int32_t layer, TensorId x) {
  const bool low_rank = s.q_lora > 0;
  program::NormMatmul products{
      .in = {x}, .norm = {w.attn_norm}, .a = {low_rank ? w.q_a : w.q}, .b = {w.kv_a}, .epsilon = s.epsilon};
  products.out_a.id = low_rank ? b.activation("q_low", kStepRows, 1, s.q_lora)
                               : b.activation("q", kStepRows, s.heads, s.key());
  products.out_b.id = b.activation("kv", kStepRows, 1, s.cache_columns());
  b.emit(products);
  program::MlaQuery query = latent_query(s, all, w, cache, layer);
  query.in.id = products.out_a.id;
  query.kv.id = products.out_b.id;
  query.out.id = b.activation("query", kStepRows, s.heads, s.cache_columns());
  b.emit(query);
  const TensorId tempered = b.attention_temperature(query.out.id, s.temperature, s.temperature_length);
  const TensorId context = b.mla_attend(tempered, cache, s.kv_lora, s.attention_scale, layer);
  const TensorId values = b.activation("values", kStepRows, s.heads, s.value);
  b.head_matmul(context, w.v_b, program::Reduce::Columns, values);
  return b.matmul_add(values, w.attn_output, x);
}

/// A projection of the row: its bias and the norm of each head where the model has them.
TensorId finish_projection(Builder& b, const Spec& s, TensorId x, TensorId bias, TensorId norm) {
  if (bias != kNoTensor) x = b.add_bias(x, bias);
  return norm != kNoTensor ? b.rms_norm(x, norm, s.epsilon) : x;
}

/// Multi-head attention whose heads share kv_heads heads of keys and values in groups.
TensorId grouped_attention(Builder& b, const Spec& s, const Weights& all, const Layer& w, TensorId cache,
                           int32_t layer, TensorId x) {
  const TensorId h = b.rms_norm(x, w.attn_norm, s.epsilon);
  const TensorId q = b.matmul(h, w.q, s.heads);  // [rows, heads, rope + nope]
  const TensorId k = b.matmul(h, w.k, s.kv_heads);
  const TensorId v = b.matmul(h, w.v);

  const TensorId key = b.activation("key", kStepRows, s.kv_heads, s.key());
  b.rope(finish_projection(b, s, k, w.k_bias, w.k_norm), s.rope_params, key, all.rope_factors, s.nope);
  b.kv_append(b.flatten(key), finish_projection(b, s, v, w.v_bias, kNoTensor), cache, layer);
  const TensorId query = b.activation("query", kStepRows, s.heads, s.key());
  b.rope(finish_projection(b, s, q, w.q_bias, w.q_norm), s.rope_params, query, all.rope_factors, s.nope);
  const TensorId context =
      b.attend(query, cache, s.kv_heads, s.value, s.attention_scale, layer, s.window_of(layer), w.sinks);
  const TensorId out = b.matmul_add(context, w.attn_output, x);
  return w.attn_output_bias != kNoTensor ? b.add_bias(out, w.attn_output_bias) : out;
}

TensorId dense(Builder& b, const Spec& s, const Layer& w, TensorId x) {
  return b.matmul_add(b.norm_gate_up(x, w.ffn_norm, s.epsilon, w.gate, w.up), w.down, x);
}

TensorId mixture(Builder& b, const Spec& s, const Layer& w, TensorId x) {
  program::NormMoeGateUp op;
  op.route = {.in = {x},
              .norm = {w.ffn_norm},
              .router = {w.router},
              .router_bias = {w.logit_bias},
              .route = {.bias = {w.router_bias},
                        .gating = s.gating,
                        .normalize = s.normalize_weights,
                        .scale = s.weights_scale,
                        .groups = static_cast<int32_t>(s.groups),
                        .groups_used = static_cast<int32_t>(s.groups_used)},
              .epsilon = s.epsilon};
  op.experts = {.gate = {w.expert_gate},
                .up = {w.expert_up},
                .gate_bias = {w.gate_bias},
                .up_bias = {w.up_bias},
                .shared_gate = {w.shared_gate},
                .shared_up = {w.shared_up},
                .form = s.expert_form};
  b.norm_moe_gate_up(op, s.experts_used);
  return b.moe_down_add({.in = {op.experts.out.id},
                         .ids = {op.route.route.ids.id},
                         .weights = {op.route.route.weights.id},
                         .down = {w.expert_down},
                         .down_bias = {w.down_bias},
                         .shared_in = {op.experts.shared_out.id},
                         .shared_down = {w.shared_down},
                         .residual = {x}});
}

}  // namespace

void build_forward(Builder& b, const Spec& spec, const Weights& weights, quant::Type cache_type) {
  // Keys that were turned are not normed as latents are: in eight bits they would cost most of what a cache
  // of eight bits costs.
  const TensorId cache =
      b.cache(spec.layers, spec.cache_columns(), cache_type, spec.is_latent() ? spec.rope : 0);
  TensorId x = b.embed(weights.token_embedding);
  for (int64_t i = 0; i < spec.layers; ++i) {
    const Layer& layer = weights.layers[static_cast<size_t>(i)];
    const auto index = static_cast<int32_t>(i);
    b.set_layer(index);
    const auto attention = !spec.is_latent()       ? grouped_attention
                           : spec.temperature != 0 ? tempered_latent_attention
                                                   : latent_attention;
    x = attention(b, spec, weights, layer, cache, index, x);
    x = spec.is_moe(i) ? mixture(b, spec, layer, x) : dense(b, spec, layer, x);
  }
  b.set_layer(-1);
  b.set_output(b.norm_matmul(b.gather_rows(x), weights.output_norm, spec.epsilon, weights.output));
}

}  // namespace sluice::model
