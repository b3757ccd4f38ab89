// Where the parts of a type's blocks lie: in the file's rows, and, in the order of this table, in panels
// (packed.h says what becomes of them there).
#pragma once

#include <cstdint>

#include "backend/cpu/simd/formats.h"
#include "quant/types.h"

namespace sluice::backend::cpu {

enum class PartKind : uint8_t { Words, Halves, Bytes, Spread };

/// `count` words (halves, bytes) from `offset` in the file's block on.
struct Part {
  PartKind kind;
  int offset, count;
};

constexpr int unit_bytes(PartKind kind) {
  return kind == PartKind::Bytes ? 1 : kind == PartKind::Halves ? 2 : 4;
}

struct Layout {
  quant::Type type;
  int parts;
  Part part[6];

  /// Of a block of one row: what stands before a part in panels, and all of it.
  constexpr int bytes_before(int index) const {
    int sum = 0;
    for (int i = 0; i < index; ++i) sum += part[i].count * unit_bytes(part[i].kind);
    return sum;
  }
  constexpr int bytes() const { return bytes_before(parts); }
};

inline constexpr Layout kLayouts[] = {
    {quant::Type::F32, 1, {{PartKind::Words, 0, 1}}},
    {quant::Type::F16, 1, {{PartKind::Halves, 0, 1}}},
    {quant::Type::BF16, 1, {{PartKind::Halves, 0, 1}}},
    {quant::Type::Q4_0, 2, {{PartKind::Words, 2, 4}, {PartKind::Halves, 0, 1}}},
    {quant::Type::Q4_1, 2, {{PartKind::Words, 4, 4}, {PartKind::Halves, 0, 2}}},
    {quant::Type::Q5_0, 3, {{PartKind::Words, 6, 4}, {PartKind::Spread, 2, 1}, {PartKind::Halves, 0, 1}}},
    {quant::Type::Q5_1, 3, {{PartKind::Words, 8, 4}, {PartKind::Spread, 4, 1}, {PartKind::Halves, 0, 2}}},
    {quant::Type::Q8_0, 2, {{PartKind::Words, 2, 8}, {PartKind::Halves, 0, 1}}},
    {quant::Type::IQ4_NL, 2, {{PartKind::Words, 2, 4}, {PartKind::Halves, 0, 1}}},
    {quant::Type::MXFP4, 2, {{PartKind::Words, 1, 4}, {PartKind::Bytes, 0, 1}}},
    {quant::Type::Q2_K, 2, {{PartKind::Halves, 80, 2}, {PartKind::Words, 0, 20}}},
    {quant::Type::Q3_K, 3, {{PartKind::Halves, 108, 1}, {PartKind::Words, 96, 3}, {PartKind::Words, 0, 24}}},
    {quant::Type::Q4_K, 2, {{PartKind::Halves, 0, 2}, {PartKind::Words, 4, 35}}},
    {quant::Type::Q5_K, 2, {{PartKind::Halves, 0, 2}, {PartKind::Words, 4, 43}}},
    {quant::Type::Q6_K,
     6,
     {{PartKind::Halves, 208, 1},
      {PartKind::Words, 192, 4},
      {PartKind::Words, 0, 16},
      {PartKind::Words, 128, 8},
      {PartKind::Words, 64, 16},
      {PartKind::Words, 160, 8}}},
    {quant::Type::IQ4_XS, 2, {{PartKind::Halves, 0, 2}, {PartKind::Words, 4, 33}}},
    {quant::Type::IQ2_XXS, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 16}}},
    {quant::Type::IQ2_XS, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 18}}},
    {quant::Type::IQ2_S, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 20}}},
    {quant::Type::IQ3_XXS, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 24}}},
    {quant::Type::IQ3_S, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 27}}},
    {quant::Type::IQ1_S, 2, {{PartKind::Halves, 0, 1}, {PartKind::Words, 2, 12}}},
    {quant::Type::IQ1_M, 1, {{PartKind::Words, 0, 14}}},
    {quant::Type::NVFP4, 1, {{PartKind::Words, 0, 9}}},
};

/// Null where a type has no packed form.
constexpr const Layout* find_layout(quant::Type type) {
  for (const Layout& layout : kLayouts) {
    if (layout.type == type) return &layout;
  }
  return nullptr;
}

#define SLUICE_HAS_LAYOUT(NAME) static_assert(find_layout(quant::Type::NAME) != nullptr);
SLUICE_CPU_FLOATS(SLUICE_HAS_LAYOUT)
SLUICE_CPU_BLOCKS(SLUICE_HAS_LAYOUT)
#undef SLUICE_HAS_LAYOUT

}  // namespace sluice::backend::cpu
