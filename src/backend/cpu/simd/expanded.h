// Attention over expanded keys and values, or over those of a cache that has them, of many rows of one
// sequence, a head at a time. Tables begin with Numbers: bfloat16 (uint16_t), which they multiply, or floats,
// which they multiply or make something else of in the same place (expanded_int16.h). Only tiers that gain by
// it have such a table. Which rows go this way, and over what, is the business of ops/mla_values.cc and
// ops/attend.cc.
//
// The right side of every product is made of panels of 16 columns: in float32 [columns / 16][inner][16], in
// bfloat16 [columns / 16][inner / 2][16] pairs of numbers, those of two neighbouring inner indices side by
// side.
#pragma once

#include <cstdint>

namespace sluice::backend::cpu {

enum class Isa : uint8_t;  // isa.h

/// Rows of the step that go over a stretch of keys together.
inline constexpr int64_t kExpandedRows = 64;
/// Cache rows whose keys and values are there at a time: 512 KB of 256 + 256 columns of float32, which stay
/// in the caches.
inline constexpr int64_t kExpandedKeys = 256;

/// A head's columns: each a multiple of 32, of the values of 16. Cache rows are `rank` columns of latent and
/// `rope` of key.
struct ExpandedShape {
  int64_t rank, nope, rope, value;
  int64_t key() const { return nope + rope; }
};

template <typename Number>
struct ExpandedKernels {
  const char* name;
  /// Before the first product of a thread, and after its last.
  void (*begin)();
  void (*end)();
  /// k_b and v_b of a head as right sides, from their panels, those of k_b with kPanelRows latents each,
  /// those of v_b with as many values: unpacked (unpack.h), or in float32 as a PanelNumbers leaves them.
  void (*k_panel)(const Number* unpacked, int64_t panel, ExpandedShape, Number* k_b);
  void (*v_panel)(const Number* unpacked, int64_t panel, ExpandedShape, Number* v_b);
  /// Queries as a left side [key()], from their first nope columns and their others.
  void (*query)(const float* nope, const float* rope, ExpandedShape, Number* out);
  /// Keys and values of `count` <= kExpandedKeys cache rows as right sides for that many keys, kExpandedRows
  /// in a page, `stride` numbers apart; all rows of a page can be read. Rows from count on have values of
  /// zero. work: [kExpandedKeys][32].
  void (*expand)(const Number* const* pages, int64_t stride, int64_t count, const Number* k_b,
                 const Number* v_b, ExpandedShape, float* work, Number* keys, Number* values);
  /// The same of rows that have the keys [key()] and, `values_at` numbers behind their first, the values.
  void (*arrange)(const Number* const* pages, int64_t stride, int64_t values_at, int64_t count, ExpandedShape,
                  Number* keys, Number* values);
  /// Up to kExpandedRows queries (with room for all) attend to the first counts[i] keys each, on top of those
  /// before: largest and total (of scores times scale, in powers that are the kernels' own matter) and sums
  /// [rows][value] go on from what they are, and begin anew where largest is minus infinity. work:
  /// [kExpandedRows][half of kExpandedKeys, and the most of that and value].
  void (*attend)(const Number* queries, const int32_t* counts, int64_t rows, const Number* keys,
                 const Number* values, ExpandedShape, float scale, float* work, float* largest, float* total,
                 float* sums);
  /// Numbers of binary16 as they are; of float32's tables alone. count: a multiple of 16.
  void (*from_halves)(const uint16_t* halves, int64_t count, Number* out) = nullptr;
  /// Done to a page's first `count` rows before expand reads them, or null: makes of floats what the table
  /// multiplies. Of such tables alone, too.
  void (*prepare)(Number* rows, int64_t stride, int64_t count, ExpandedShape) = nullptr;
  /// What largest is of a score times scale: in powers of e 1.
  float power = 1;
};

/// The table of a tier, or null; a tier has one at most.
template <typename Number>
const ExpandedKernels<Number>* expanded_kernels(Isa isa);

/// The same for caches of keys and values, which gain by tables that latents do not.
template <typename Number>
const ExpandedKernels<Number>* arranging_kernels(Isa isa);

}  // namespace sluice::backend::cpu
