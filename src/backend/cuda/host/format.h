// How each number format is packed in device memory: up to four flat planes, each a run of equal pieces, so
// that a warp reads 16 bytes a lane without gaps and the file's bits keep (almost) the file's size.
//
//   codes   the codes' low bits, a piece per 32 columns. 16 bytes: byte i holds column i (low nibble) and 16
//   + i.
//           32 bytes: int8. 8 bytes: byte i holds columns i, 8 + i, 16 + i, 24 + i in pairs of bits.
//           Float types: the rows as they are.
//   high    the codes' top bits. 4 bytes: bit j of byte c belongs to column 4j + c. 8 bytes (Q6_K): two words
//   of
//           16 columns, bits 2j and 2j + 1 of byte c of word w belong to column 16w + 4j + c.
//   scale   what is multiplied (and added) per 32 columns; Q3_K: 12 bytes per 256
//   super   per 256 columns: the scale of scales, and of minimums
//
// Types whose codes name points of a grid keep their bits, sorted by 32 columns (prim/iq_points.cuh reads
// them):
//   IQ2_XXS  codes: 4 codes, word of signs and scale
//   IQ2_XS   codes: 4 words of a code and its signs; scale: two nibbles
//   IQ2_S    codes: 4 codes, 4 bytes of signs; high: two more bits of each code; scale: two nibbles
//   IQ3_XXS  codes: 8 codes; high: word of signs and scale
//   IQ3_S    codes: 8 codes; high: signs; scale: one more bit of each code, scale
//   IQ1_S    codes: 4 codes; scale: word of 3 more bits of each, scale and shift
//   IQ1_M    codes: 4 codes; high: 4 nibbles of 3 more bits and a shift; scale: two nibbles
#pragma once

#include <cstdint>

#include "quant/types.h"

namespace sluice::backend::cuda {

/// Bytes of a piece of each plane; 0: the type has no such plane.
struct Format {
  quant::Type type;
  int codes, high, scale, super;  ///< per 32 columns; super, and Q3_K's scale: per 256
};

inline constexpr Format kFormats[] = {
    {quant::Type::Q4_0, 16, 0, 2, 0},  {quant::Type::Q4_1, 16, 0, 4, 0},   {quant::Type::Q5_0, 16, 4, 2, 0},
    {quant::Type::Q5_1, 16, 4, 4, 0},  {quant::Type::Q8_0, 32, 0, 2, 0},   {quant::Type::Q2_K, 8, 0, 2, 4},
    {quant::Type::Q3_K, 8, 4, 12, 2},  {quant::Type::Q4_K, 16, 0, 2, 4},   {quant::Type::Q5_K, 16, 4, 2, 4},
    {quant::Type::Q6_K, 16, 8, 2, 2},  {quant::Type::IQ4_NL, 16, 0, 2, 0}, {quant::Type::IQ4_XS, 16, 0, 1, 2},
    {quant::Type::MXFP4, 16, 0, 1, 0}, {quant::Type::NVFP4, 16, 0, 2, 0},  {quant::Type::IQ2_XXS, 8, 0, 0, 2},
    {quant::Type::IQ2_XS, 8, 0, 1, 2}, {quant::Type::IQ2_S, 8, 1, 1, 2},   {quant::Type::IQ3_XXS, 8, 4, 0, 2},
    {quant::Type::IQ3_S, 8, 4, 2, 2},  {quant::Type::IQ1_S, 4, 0, 2, 2},   {quant::Type::IQ1_M, 4, 2, 1, 2}};

/// The format of a blocked type; null for float types and types that cannot be decoded.
constexpr const Format* find_format(quant::Type type) {
  for (const Format& row : kFormats) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

/// Bytes of each plane of `count` numbers (a multiple of the type's block).
struct PlaneBytes {
  int64_t codes = 0, high = 0, scale = 0, super = 0;
};
inline PlaneBytes plane_bytes(quant::Type type, int64_t count) {
  const Format* format = find_format(type);
  if (format == nullptr) return {quant::bytes_of(quant::type_info(type), count)};
  const int64_t blocks = count / 32;
  return {blocks * format->codes, blocks * format->high,
          (type == quant::Type::Q3_K ? blocks / 8 : blocks) * format->scale, blocks / 8 * format->super};
}

}  // namespace sluice::backend::cuda
