// What the files of kernels share: operands as parameters, and dispatches put together.
#pragma once

#include <bit>

#include "backend/vulkan/kernels.h"

namespace sluice::backend::vulkan {

/// Where an activation lies, in floats.
struct Place {
  uint32_t at = 0, row = 0, head = 0;
};

/// Numbers in the arena as kernels read and write them: an activation, or what an op's dispatches leave for
/// each other.
struct Operand {
  Place place;
  uint32_t heads = 1, columns = 0;
  int64_t rows = 0;
  uint32_t rows_word = 0;
  bool aligned = true;  ///< all offsets are multiples of four floats

  /// Some columns of every head.
  Operand part(uint32_t first, uint32_t count) const {
    Operand view = *this;
    view.place.at += first, view.columns = count;
    view.aligned = aligned && first % 4 == 0 && count % 4 == 0;
    return view;
  }
};

/// Makes the dispatches of one op.
struct Emit {
  const Layout& layout;
  const Sizes& sizes;
  std::vector<Dispatch> list = {};
  int64_t scratch_bytes = 0;  ///< taken so far

  Operand operand(program::TensorId id) const;
  /// Room that the op's dispatches have beside its operands.
  Operand scratch(int64_t heads, int64_t columns);
  /// Such a place for so many numbers, whatever the step's rows; in floats.
  uint32_t scratch_at(int64_t floats);
  /// The next dispatch waits for those before it.
  void wait() { waits = true; }
  void add(Dispatch dispatch);
  bool waits = false;

  const program::Tensor& operator[](program::TensorId id) const { return layout.program[id]; }
  Place place(program::TensorId id) const;
  /// How many rows this activation has in such steps, and which word of the step's data says it exactly.
  int64_t rows(program::TensorId id) const;
  uint32_t rows_word(program::TensorId id) const { return (*this)[id].shape[0] == program::kOutputRows; }
  uint32_t columns(program::TensorId id) const { return static_cast<uint32_t>((*this)[id].columns()); }
  uint32_t heads(program::TensorId id) const { return static_cast<uint32_t>((*this)[id].heads()); }
  /// Whether all of its offsets are multiples of four floats.
  bool is_aligned(program::TensorId id) const;
  BoundWeight weight(program::TensorId id, int at_param = -1) const { return {id, false, at_param}; }
  BoundWeight vector(program::TensorId id, int at_param = -1) const { return {id, true, at_param}; }
};

inline uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t groups(int64_t count, int64_t each) {
  return static_cast<uint32_t>((count + each - 1) / each);
}

/// Bytes from a weight's beginning to that of a view of it, from a matrix to the next, from a row to the
/// next.
struct WeightBytesAt {
  uint32_t first = 0, matrix = 0, row = 0;
};
WeightBytesAt bytes_at(const program::Tensor& tensor);

// By file: products.cc, attention.cc, latent.cc, mixture.cc, small_ops.cc.

/// A second product of the same rows: without a gate, normed where the first is.
struct SideProduct {
  program::TensorId weight = program::kNoTensor;
  Operand out = {};
};
/// The experts are chosen where they are multiplied.
struct Choice {
  Operand logits, weights;
  const program::Route* rule = nullptr;
};
/// What attention left in stretches is put together where it is multiplied.
struct Merge {
  uint32_t stretches = 0, partial_at = 0;
};
/// Rows of the latent cache are made beside it.
struct LatentRows {
  Operand kv;
  program::TensorId norm = program::kNoTensor, cache = program::kNoTensor, factors = program::kNoTensor;
  program::RopeParams rope = {};
  int64_t layer = 0, rank = 0, rotated = 0;
  float epsilon = 0;
};
/// Experts that group.comp has shared memory for.
inline constexpr int64_t kMostGrouped = 1024;
/// Rows in codes (codes.comp), in quads of the arena.
struct Codes {
  uint32_t at = 0, row = 0, head = 0;
};
struct ProductOf {
  Operand in = {};
  program::TensorId weight = program::kNoTensor;
  Operand out = {};
  bool by_head = false;  ///< a matrix a head
  program::TensorId gate = program::kNoTensor, norm = program::kNoTensor;
  const Operand *added = nullptr, *ids = nullptr;
  float epsilon = 0;
  program::Swiglu form = {};
  // At most one of these.
  const SideProduct* side = nullptr;
  const Choice* choice = nullptr;
  const Merge* merge = nullptr;
  const LatentRows* latent = nullptr;
  /// Of `in`, where they are made already; norms are in them.
  const Codes* codes = nullptr;
};
/// Whether rows of such steps become codes once, and not in every workgroup again.
bool are_coded_once(const Emit& emit, int64_t rows);
/// Whether such a product takes rows that became codes in a dispatch before it.
bool takes_codes(const Emit& emit, const ProductOf& product);
/// Makes them. columns: of a row, or of each of its heads; norm: kNoTensor: none.
Codes emit_codes(Emit& emit, const Operand& in, int64_t columns, int64_t heads, program::TensorId norm,
                 float epsilon);
void emit_product(Emit& emit, const ProductOf& product);
/// Formats whose rows few rows of activations are multiplied with by runs, in eight bits (shaders/runs.glsl).
bool is_of_runs(const program::Tensor& weight);
/// Whether the rows of each expert are multiplied together in steps of so many.
bool are_grouped(const Emit& emit, int64_t rows);
/// Whether steps of so many rows are multiplied in tiles.
bool is_tiled(const Emit& emit, int64_t rows);
void emit_latent_rows(Emit& emit, const LatentRows& latent);
/// The words that say how a row of the latent cache is made: constants of latent_row.glsl.
std::vector<uint32_t> latent_constants(const Emit& emit, const LatentRows& latent);
void emit_rows_product(Emit& emit, const Operand& in, program::TensorId weight, const Operand& out);

struct Attention {
  Operand q;
  program::TensorId cache = program::kNoTensor;
  Operand out;
  program::TensorId sinks = program::kNoTensor;
  int64_t kv_heads = 1, values_at = 0, value_step = 0;
  float scale = 1;
  int64_t window = 0, layer = 0;
  /// The queries' last columns, which are rotated on the way in: how, and by which factors.
  const Operand* rotated = nullptr;
  const program::RopeParams* rope = nullptr;
  program::TensorId factors = program::kNoTensor;
};
/// Whether prompts' rows are attended to in tiles, with queries that are rotated before.
bool tiles_prompts(const Emit& emit);
/// Without merges: more than one stretch is left as it is.
Merge emit_attention(Emit& emit, const Attention& op, bool merges);
void emit_route(Emit& emit, const program::Route& op, const Operand& logits, const Operand& ids,
                const Operand& weights);
/// out = onto (optional) + the sum of a row's experts by their weights
void emit_combine(Emit& emit, const Operand& experts, const Operand& weights, const Operand* onto,
                  const Operand& out);
/// Returns where the last of them leaves the pairs (Top).
uint32_t emit_top(Emit& emit, const Operand& logits);
void emit_rope(Emit& emit, const Operand& in, const program::RopeParams& params, program::TensorId factors,
               int64_t passed, const Operand& out);
void emit_norm(Emit& emit, const Operand& in, program::TensorId weight, float epsilon, const Operand& out);

void emit(Emit& emit, const program::MlaHeads& op);
void emit(Emit& emit, const program::NormMoeGateUp& op);
void emit(Emit& emit, const program::MoeDownAdd& op);
void emit(Emit& emit, const program::Embed& op);
void emit(Emit& emit, const program::KvAppend& op);
void emit(Emit& emit, const program::MlaAttend& op);
void emit(Emit& emit, const program::Attend& op);
void emit(Emit& emit, const program::RmsNorm& op);
void emit(Emit& emit, const program::Rope& op);
void emit(Emit& emit, const program::Route& op);
void emit(Emit& emit, const program::SiluMul& op);
void emit(Emit& emit, const program::Add& op);
void emit(Emit& emit, const program::AddBias& op);
void emit(Emit& emit, const program::ExpertBias& op);
void emit(Emit& emit, const program::ExpertCombine& op);
void emit(Emit& emit, const program::AttentionTemperature& op);
void emit(Emit& emit, const program::GatherRows& op);
void emit(Emit& emit, const program::CausalConv& op);
void emit(Emit& emit, const program::SigmoidMul& op);
void emit(Emit& emit, const program::Scale& op);
void emit(Emit& emit, const program::DeltaRule& op);

}  // namespace sluice::backend::vulkan
