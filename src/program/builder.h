// Builds a Program so that building reads like a forward pass: every method emits one op and returns its
// result.
#pragma once

#include <string>

#include "program/program.h"

namespace sluice::program {

class Builder {
 public:
  explicit Builder(Program& program) : program_(program) {}

  const Program& program() const { return program_; }
  /// Ops emitted from here on belong to this layer (-1: to none).
  void set_layer(int32_t layer) { layer_ = layer; }
  /// Tensors and ops made from here on belong to this place (places.h).
  void set_place(int32_t place) { place_ = place; }

  // --- tensors ---
  TensorId weight(std::string name, quant::Type type, int64_t matrices, int64_t rows, int64_t columns);
  /// A part of a weight: `rows` rows from `first_row` on of each of `matrices` matrices that begin every
  /// `matrix_stride` rows.
  TensorId weight_view(TensorId base, std::string name, int64_t matrices, int64_t rows, int64_t first_row,
                       int64_t matrix_stride);
  /// A part of a weight, or of a view of one: these of its matrices, rows and columns, these at borders of
  /// the type's blocks.
  TensorId weight_part(TensorId of, Range matrices, Range rows, Range columns);
  TensorId activation(std::string name, int64_t rows, int64_t heads, int64_t columns,
                      quant::Type type = quant::Type::F32, int64_t most_rows = 0);
  /// Columns [first, first + count) of every head of an activation.
  TensorId columns(TensorId base, std::string name, int64_t first, int64_t count);
  /// Columns from `first` on of an activation of one head as heads that stand side by side.
  TensorId heads(TensorId base, std::string name, int64_t first, int64_t heads, int64_t columns);
  /// All heads of an activation as the columns of one.
  TensorId flatten(TensorId base);
  /// A paged cache: `layers` rows of `columns` a token (quant/cache_row.h).
  TensorId cache(int64_t layers, int64_t columns, quant::Type type, int64_t exact = 0,
                 std::string name = "cache");
  /// What a sequence keeps however long it is: `layers` times `rows` rows of `columns`.
  TensorId state(std::string name, int64_t layers, int64_t rows, int64_t columns);

  // --- ops ---
  void emit(OpArgs args) { program_.add(Op{std::move(args), layer_, place_}); }
  TensorId embed(TensorId table);
  TensorId rms_norm(TensorId in, TensorId weight, float epsilon);
  TensorId matmul(TensorId in, TensorId weight, int64_t heads = 1);
  TensorId matmul_add(TensorId in, TensorId weight, TensorId residual, TensorId bias = kNoTensor);
  void head_matmul(TensorId in, TensorId weight, Reduce reduce, TensorId out);
  TensorId add_bias(TensorId in, TensorId bias);
  TensorId add(TensorId a, TensorId b);
  TensorId scale(TensorId in, TensorId scale, TensorId ids = kNoTensor);
  void rope(TensorId in, const RopeParams& params, TensorId out, TensorId factors = kNoTensor,
            int64_t passed = 0);
  TensorId attention_temperature(TensorId in, double beta, double length);
  void kv_append(TensorId latent, TensorId rope_key, TensorId cache, int32_t cache_layer);
  TensorId mla_attend(TensorId q, TensorId cache, int64_t rank, float scale, int32_t cache_layer);
  TensorId attend(TensorId q, TensorId cache, int64_t kv_heads, int64_t value_columns, float scale,
                  int32_t cache_layer, int64_t window = 0, TensorId sinks = kNoTensor);
  /// Fills in the output of `op`, whose inputs the caller has set.
  TensorId gqa_attend(GqaAttend op, int64_t value_columns);
  TensorId causal_conv(TensorId in, TensorId weight, TensorId state, int32_t cache_layer, bool silu = false);
  /// Fills in the output of `op`, whose inputs the caller has set.
  TensorId delta_rule(DeltaRule op);
  TensorId gated_norm(TensorId in, TensorId weight, TensorId gate, float epsilon, GateForm form);
  TensorId sigmoid_mul(TensorId in, TensorId gate);
  /// Fills in the ids and weights of `route`, whose scalars the caller has set.
  void route(Route& route, int64_t used);
  TensorId silu_mul(TensorId gate, TensorId up, const Swiglu& form = {});
  TensorId gather_rows(TensorId in);
  TensorId norm_matmul(TensorId in, TensorId norm, float epsilon, TensorId weight);
  TensorId gate_up(TensorId in, TensorId gate, TensorId up);
  TensorId norm_gate_up(TensorId in, TensorId norm, float epsilon, TensorId gate, TensorId up);
  /// Fills in the outputs of `op`, whose inputs the caller has set.
  void moe_gate_up(MoeGateUp& op);
  /// The same, with `used` experts a row.
  void norm_moe_gate_up(NormMoeGateUp& op, int64_t used);
  TensorId moe_down_add(MoeDownAdd op);
  /// This activation is what a step gives back: [output rows, 1, vocabulary].
  void set_output(TensorId logits) { program_.set_output(logits); }
  /// See Program::hidden_in() and hidden_out().
  void set_hidden_in(TensorId rows) { program_.set_hidden_in(rows); }
  void set_hidden_out(TensorId rows) { program_.set_hidden_out(rows); }

 private:
  TensorId add(Tensor tensor);
  TensorId like(const char* name, TensorId shape_of, int64_t heads, int64_t columns);

  Program& program_;
  int32_t layer_ = -1, place_ = 0;
};

}  // namespace sluice::program
