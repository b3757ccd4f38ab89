#include "backend/vulkan/expand.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

/// Queries are normalised where they are multiplied, while the latent row and its key are made; then the row
/// enters the cache while queries are rotated and taken to latent space.
void expand(Builder& b, const MlaQuery& op) {
  const int64_t heads = b.program()[op.out.id].heads(), rank = op.rank(b.program());
  const int64_t nope = op.nope(b.program()), rotated = op.rope_columns(b.program());
  TensorId queries = op.in.id;
  if (op.q) {
    queries = b.activation("queries", kStepRows, heads, nope + rotated);
    b.emit(NormMatmul{.in = op.in, .norm = op.q_norm, .a = op.q, .out_a = {queries}, .epsilon = op.epsilon});
  }
  const TensorId latent = b.rms_norm(b.columns(op.kv.id, "latent", 0, rank), op.kv_norm.id, op.epsilon);
  const TensorId key = b.activation("rope_key", kStepRows, 1, rotated);
  b.rope(b.columns(op.kv.id, "rope_in", rank, rotated), op.rope, key, op.factors.id);
  b.emit(KvAppend{{latent}, {key}, op.cache, op.cache_layer});
  b.rope(b.columns(queries, "q_rope", nope, rotated), op.rope,
         b.columns(op.out.id, "query_rope", rank, rotated), op.factors.id);
  b.head_matmul(b.columns(queries, "q_nope", 0, nope), op.k_b.id, op.k_b_reduce,
                b.columns(op.out.id, "query_latent", 0, rank));
}

/// The norm is of the router's product, too, and its result is made beside it.
TensorId expand_to_logits(Builder& b, const NormRoute& op, TensorId normed) {
  const int64_t experts = b.program()[op.router.id].shape[1];
  const TensorId logits = b.activation("router_logits", kStepRows, 1, experts);
  b.emit(NormMatmul{.in = op.in, .norm = op.norm, .a = op.router, .out_a = {logits}, .epsilon = op.epsilon});
  b.emit(RmsNorm{op.in, op.norm, {normed}, op.epsilon});
  return op.router_bias ? b.add_bias(logits, op.router_bias.id) : logits;
}

void expand(Builder& b, const NormRoute& op) {
  Route rest = op.route;
  rest.logits.id = expand_to_logits(b, op, op.normed.id);
  b.emit(rest);
}

/// The shared expert needs no route, and runs beside it.
void expand(Builder& b, const NormMoeGateUp& op) {
  if (op.shared_router) return op.expand(b);
  const TensorId normed = b.activation("normed", kStepRows, 1, b.program()[op.route.in.id].columns());
  Route rest = op.route.route;
  rest.logits.id = expand_to_logits(b, op.route, normed);
  MoeGateUp experts = op.experts;
  if (experts.shared_gate) {
    b.emit(GateUp{{normed}, experts.shared_gate, experts.shared_up, experts.shared_out});
    experts.shared_gate = experts.shared_up = {};
    experts.shared_out = {};
  }
  b.emit(rest);
  experts.in.id = normed;
  experts.ids.id = rest.ids.id;
  b.emit(experts);
}

}  // namespace

bool expand_otherwise(Builder& builder, const Op& op) {
  return std::visit(
      [&](const auto& args) {
        if constexpr (requires { expand(builder, args); }) {
          expand(builder, args);
          return true;
        }
        return false;
      },
      op.args);
}

}  // namespace sluice::backend::vulkan
