#include "model/build.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace sluice::model {
namespace {

using program::Builder;
using program::kStepRows;

/// A product, multiplied by what the file says of its whole matrix.
TensorId scaled(Builder& b, TensorId product, TensorId scale) {
  return scale != kNoTensor ? b.scale(product, scale) : product;
}

/// The residual and a product, whose scale is of the product alone.
TensorId matmul_add(Builder& b, const Layer& w, TensorId in, TensorId weight, TensorId residual,
                    TensorId bias = kNoTensor) {
  const TensorId scale = w.scale_of(weight);
  if (scale == kNoTensor) return b.matmul_add(in, weight, residual, bias);
  const TensorId product = b.scale(b.matmul_add(in, weight, kNoTensor), scale);
  return b.add(bias != kNoTensor ? b.add_bias(product, bias) : product, residual);
}

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
                          .cache_layer = static_cast<int32_t>(s.alike_before(layer))};
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
  return matmul_add(b, w, values, w.attn_output, x);
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
  const TensorId context = b.mla_attend(tempered, cache, s.kv_lora, s.attention_scale,
                                        static_cast<int32_t>(s.alike_before(layer)));
  const TensorId values = b.activation("values", kStepRows, s.heads, s.value);
  b.head_matmul(context, w.v_b, program::Reduce::Columns, values);
  return matmul_add(b, w, values, w.attn_output, x);
}

/// What sequences keep: rows of the paged cache, and states of linear attention.
struct Caches {
  TensorId rows = kNoTensor;
  TensorId conv = kNoTensor;                                            // of queries, keys and values
  TensorId q_conv = kNoTensor, k_conv = kNoTensor, v_conv = kNoTensor;  // or of each
  TensorId matrices = kNoTensor;                                        // of the delta rule
};

/// A weight that the normed row is multiplied with, and the heads of the product.
struct Product {
  const char* name;
  TensorId weight;
  int64_t heads = 1;
};

using Products = std::array<TensorId, program::NormMatmul::kMostProducts>;

/// Products of the row behind this norm. Those with weights of one type are one op: kernels of one row are
/// made for a type, and the norm is made again sooner than it is handed on. mixed: files mix types here, so
/// all are one, but for float32.
Products products_of_row(Builder& b, const Spec& s, const Layer& w, TensorId norm, TensorId x,
                         std::initializer_list<Product> wanted, bool mixed = false) {
  Products products{kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  const std::span<const Product> all(wanted);
  const auto type = [&](size_t i) { return b.program()[all[i].weight].type; };
  const auto together = [&](size_t i, size_t j) {
    return type(i) == type(j) || (mixed && type(i) != quant::Type::F32 && type(j) != quant::Type::F32);
  };
  for (size_t first = 0; first < all.size(); ++first) {
    if (products[first] != kNoTensor) continue;
    program::NormMatmul op{.in = {x}, .norm = {norm}, .epsilon = s.epsilon};
    const std::array<std::pair<program::Read*, program::Write*>, products.size()> places{
        {{&op.a, &op.out_a}, {&op.b, &op.out_b}, {&op.c, &op.out_c}, {&op.d, &op.out_d}}};
    for (size_t i = first, place = 0; i < all.size(); ++i) {
      if (!together(i, first)) continue;
      const Product& one = all[i];
      const int64_t columns = b.program()[one.weight].shape[1] / one.heads;
      places[place].first->id = one.weight;
      products[i] = places[place++].second->id = b.activation(one.name, kStepRows, one.heads, columns);
    }
    b.emit(op);
  }
  for (size_t i = 0; i < all.size(); ++i) products[i] = scaled(b, products[i], w.scale_of(all[i].weight));
  return products;
}

/// Multi-head attention whose heads share kv_heads heads of keys and values in groups.
TensorId grouped_attention(Builder& b, const Spec& s, const Weights& all, const Layer& w, TensorId cache,
                           int32_t layer, TensorId x) {
  // queries: [rows, heads, rope + nope], and behind a head's query its gate where there is one
  const auto [queries, k, v, none] = products_of_row(
      b, s, w, w.attn_norm, x, {{"queries", w.q, s.heads}, {"keys", w.k, s.kv_heads}, {"values", w.v}},
      /*mixed=*/true);
  const TensorId q = s.gated_queries ? b.columns(queries, "q", 0, s.key()) : queries;

  program::GqaAttend op{.query = {.q = {q},
                                  .k = {k},
                                  .v = {v},
                                  .q_bias = {w.q_bias},
                                  .k_bias = {w.k_bias},
                                  .v_bias = {w.v_bias},
                                  .q_norm = {w.q_norm},
                                  .k_norm = {w.k_norm},
                                  .factors = {all.rope_factors},
                                  .cache = {cache},
                                  .rope = s.rope_params,
                                  .passed = s.nope,
                                  .epsilon = s.epsilon,
                                  .cache_layer = static_cast<int32_t>(s.alike_before(layer))},
                        .sinks = {w.sinks},
                        .scale = s.attention_scale,
                        .window = s.window_of(layer)};
  if (s.gated_queries) op.gate.id = b.columns(queries, "gate", s.key(), s.value);
  return matmul_add(b, w, b.gqa_attend(op, s.value), w.attn_output, x, w.attn_output_bias);
}

/// Queries, keys and values by one convolution, and a number a head decays its matrix.
TensorId delta_net(Builder& b, const Spec& s, const Layer& w, const Caches& caches, TensorId x,
                   const program::DeltaRule& rule) {
  const int64_t each = s.linear_heads / s.linear_key_heads;
  const Product qkv{"qkv", w.qkv}, gate{"gate", w.output_gate, s.linear_heads};
  program::DeltaNet op{.rule = rule};
  Products products;
  if (w.beta_decay != kNoTensor) {
    products = products_of_row(b, s, w, w.attn_norm, x,
                               {qkv, gate, {"beta_decay", w.beta_decay, s.linear_key_heads}});
    op.rule.beta = {b.columns(products[2], "beta", 0, each)};
    op.rule.decay = {b.columns(products[2], "decay", each, each)};
  } else {
    products = products_of_row(b, s, w, w.attn_norm, x, {qkv, gate, {"beta", w.beta}, {"decay", w.decay}});
    op.rule.beta = {products[2]}, op.rule.decay = {products[3]};
  }
  op.conv = {.in = {products[0]},
             .weight = {w.conv},
             .state = {caches.conv},
             .cache_layer = rule.cache_layer,
             .silu = true};
  op.norm = {.weight = {w.linear_norm},
             .gate = {products[1]},
             .out = {b.activation("attended", kStepRows, s.linear_heads, s.linear_value)},
             .epsilon = s.epsilon};
  b.emit(op);
  return op.norm.out.id;
}

/// Kimi's: a convolution each, a decay a channel of the keys, of a low rank, and so is the gate.
TensorId channel_decays(Builder& b, const Spec& s, const Layer& w, const Caches& caches, TensorId x,
                        const program::DeltaRule& rule) {
  program::DeltaRule op = rule;
  const auto rows = products_of_row(b, s, w, w.attn_norm, x, {{"q", w.q}, {"k", w.k}, {"v", w.v}});
  const auto convolve = [&](size_t i, TensorId conv, TensorId state) {
    const TensorId mixed = b.causal_conv(rows[i], conv, state, op.cache_layer, true);
    return program::Read{b.heads(mixed, "head", 0, s.linear_heads, s.linear_key)};
  };
  op.q = convolve(0, w.q_conv, caches.q_conv);
  op.k = convolve(1, w.k_conv, caches.k_conv);
  op.v = convolve(2, w.v_conv, caches.v_conv);
  const auto low = products_of_row(
      b, s, w, w.attn_norm, x, {{"decay_low", w.decay_a}, {"beta", w.beta}, {"gate_low", w.output_gate_a}});
  op.decay = {b.matmul(low[0], w.decay)};
  op.beta = {low[1]};
  const TensorId gate = b.matmul(low[2], w.output_gate, s.linear_heads);
  return b.gated_norm(b.delta_rule(op), w.linear_norm, gate, s.epsilon, program::GateForm::Sigmoid);
}

/// Linear attention by the gated delta rule, behind a short convolution.
TensorId linear_attention(Builder& b, const Spec& s, const Layer& w, const Caches& caches, int32_t layer,
                          TensorId x) {
  const program::DeltaRule op{.rate = {w.decay_rate},
                              .bias = {w.decay_bias},
                              .state = {caches.matrices},
                              .cache_layer = static_cast<int32_t>(s.alike_before(layer)),
                              .in_turns = s.key_heads_in_turns};
  const TensorId out = (s.decay_by_channel ? channel_decays : delta_net)(b, s, w, caches, x, op);
  return matmul_add(b, w, out, w.attn_output, x);
}

bool any_scale(const Layer& w, std::initializer_list<TensorId> weights) {
  return std::ranges::any_of(weights, [&](TensorId weight) { return w.scale_of(weight) != kNoTensor; });
}

/// A network that all rows go through whose matrices have scales. share: kNoTensor, or how much it counts.
TensorId scaled_network(Builder& b, const Spec& s, const Layer& w, TensorId gate, TensorId up, TensorId down,
                        TensorId share, TensorId x) {
  const auto products = products_of_row(b, s, w, w.ffn_norm, x, {{"gate", gate}, {"up", up}});
  TensorId gated = b.silu_mul(products[0], products[1]);
  if (share != kNoTensor) gated = b.sigmoid_mul(gated, b.norm_matmul(x, w.ffn_norm, s.epsilon, share));
  return matmul_add(b, w, gated, down, x);
}

TensorId dense(Builder& b, const Spec& s, const Layer& w, TensorId x) {
  if (any_scale(w, {w.gate, w.up, w.down}))
    return scaled_network(b, s, w, w.gate, w.up, w.down, kNoTensor, x);
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
                .gate_scale = {w.scale_of(w.expert_gate)},
                .up_scale = {w.scale_of(w.expert_up)},
                .form = s.expert_form};
  TensorId shared_down = kNoTensor, residual = x;
  if (any_scale(w, {w.shared_gate, w.shared_up, w.shared_down})) {
    residual = scaled_network(b, s, w, w.shared_gate, w.shared_up, w.shared_down, w.shared_router, x);
  } else {
    op.experts.shared_gate = {w.shared_gate}, op.experts.shared_up = {w.shared_up};
    op.shared_router = {w.shared_router}, shared_down = w.shared_down;
  }
  b.norm_moe_gate_up(op, s.experts_used);
  return b.moe_down_add({.in = {op.experts.out.id},
                         .ids = {op.route.route.ids.id},
                         .weights = {op.route.route.weights.id},
                         .down = {w.expert_down},
                         .down_bias = {w.down_bias},
                         .down_scale = {w.scale_of(w.expert_down)},
                         .shared_in = {op.experts.shared_out.id},
                         .shared_down = {shared_down},
                         .residual = {residual}});
}

Caches make_caches(Builder& b, const Spec& s, quant::Type cache_type) {
  Caches caches;
  const int64_t linear = s.linear_layers();
  // Keys that were rotated are not normed as latents are: in eight bits they would cost most of what a cache
  // of eight bits costs.
  caches.rows = b.cache(s.layers - linear, s.cache_columns(), cache_type, s.is_latent() ? s.rope : 0);
  if (linear == 0) return caches;
  const auto convolution = [&](const char* name, int64_t columns) {
    return b.state(name, linear, s.taps - 1, columns);
  };
  if (s.decay_by_channel) {
    const int64_t columns = s.linear_heads * s.linear_key;
    caches.q_conv = convolution("q_rows", columns);
    caches.k_conv = convolution("k_rows", columns);
    caches.v_conv = convolution("v_rows", columns);
  } else {
    caches.conv = convolution("qkv_rows", s.linear_columns());
  }
  caches.matrices = b.state("matrices", linear, s.linear_heads * s.linear_key, s.linear_value);
  return caches;
}

}  // namespace

namespace {

TensorId feed_forward(Builder& b, const Spec& spec, const Layer& layer, TensorId x) {
  return layer.router != kNoTensor ? mixture(b, spec, layer, x) : dense(b, spec, layer, x);
}

TensorId attention(Builder& b, const Spec& spec, const Weights& weights, const Layer& layer, TensorId cache,
                   int32_t index, TensorId x) {
  const auto kind = !spec.is_latent()       ? grouped_attention
                    : spec.temperature != 0 ? tempered_latent_attention
                                            : latent_attention;
  return kind(b, spec, weights, layer, cache, index, x);
}

/// Logits of a step's outputs.
void finish(Builder& b, const Spec& spec, const Weights& weights, TensorId x) {
  const TensorId logits = b.norm_matmul(b.gather_rows(x), weights.output_norm, spec.epsilon, weights.output);
  b.set_output(scaled(b, logits, weights.output_scale));
}

/// The same, to the bit, and the normed states of all rows stay.
void finish_with_hidden(Builder& b, const Spec& spec, const Weights& weights, TensorId x) {
  b.set_hidden_out(b.rms_norm(x, weights.output_norm, spec.epsilon));
  finish(b, spec, weights, x);
}

}  // namespace

void build_forward(Builder& b, const Spec& spec, const Weights& weights, quant::Type cache_type,
                   bool hidden) {
  const Caches caches = make_caches(b, spec, cache_type);
  TensorId x = b.embed(weights.token_embedding);
  for (int64_t i = 0; i < spec.layers; ++i) {
    const Layer& layer = weights.layers[static_cast<size_t>(i)];
    const auto index = static_cast<int32_t>(i);
    b.set_layer(index);
    x = spec.is_linear(i) ? linear_attention(b, spec, layer, caches, index, x)
                          : attention(b, spec, weights, layer, caches.rows, index, x);
    x = feed_forward(b, spec, layer, x);
  }
  b.set_layer(-1);
  if (hidden) return finish_with_hidden(b, spec, weights, x);
  finish(b, spec, weights, x);
}

void build_prediction(Builder& b, const Spec& spec, const PredictionWeights& weights,
                      quant::Type cache_type) {
  const Weights& block = weights.block;
  const TensorId cache =
      b.cache(1, spec.cache_columns(), cache_type, spec.is_latent() ? spec.rope : 0);  // as make_caches()
  const TensorId hidden = b.activation("hidden", kStepRows, 1, spec.dim);
  b.set_hidden_in(hidden);
  const TensorId embedded = b.embed(block.token_embedding);
  b.set_layer(static_cast<int32_t>(spec.layers));
  const TensorId both = b.activation("embedded_and_hidden", kStepRows, 1, 2 * spec.dim);
  const auto norm_into = [&](TensorId in, TensorId norm, const char* name, int64_t first) {
    b.emit(program::RmsNorm{.in = {in},
                            .weight = {norm},
                            .out = {b.columns(both, name, first, spec.dim)},
                            .epsilon = spec.epsilon});
  };
  norm_into(embedded, weights.embedding_norm, "embedded", 0);
  norm_into(hidden, weights.hidden_norm, "hidden", spec.dim);
  TensorId x = scaled(b, b.matmul(both, weights.projection), weights.projection_scale);
  const Layer& layer = block.layers.front();
  x = feed_forward(b, spec, layer, attention(b, spec, block, layer, cache, 0, x));
  b.set_layer(-1);
  finish_with_hidden(b, spec, block, x);
}

}  // namespace sluice::model
