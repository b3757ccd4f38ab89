#include "backend/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"

namespace sluice::backend::cpu {
namespace {

using quant::Type;

/// A part of a block: `count` words (halves, bytes) from `offset` in the file's block on.
enum class Kind : uint8_t { Words, Halves, Bytes, Spread };
struct Part {
  Kind kind;
  int offset, count;
};

/// A type's packed form: its parts in the packed order, and the kernels that read it. Float types have no
/// unpack.
struct Layout {
  Type type;
  PanelProduct MatmulKernels::*product;
  PanelUnpack TileKernels::*unpack;
  int parts;
  Part part[6];
};

constexpr Layout kLayouts[] = {
    {Type::F32, &MatmulKernels::f32, nullptr, 1, {{Kind::Words, 0, 1}}},
    {Type::F16, &MatmulKernels::f16, nullptr, 1, {{Kind::Halves, 0, 1}}},
    {Type::BF16, &MatmulKernels::bf16, nullptr, 1, {{Kind::Halves, 0, 1}}},
    {Type::Q4_0, &MatmulKernels::q4_0, &TileKernels::q4_0, 2, {{Kind::Words, 2, 4}, {Kind::Halves, 0, 1}}},
    {Type::Q4_1, &MatmulKernels::q4_1, &TileKernels::q4_1, 2, {{Kind::Words, 4, 4}, {Kind::Halves, 0, 2}}},
    {Type::Q5_0,
     &MatmulKernels::q5_0,
     &TileKernels::q5_0,
     3,
     {{Kind::Words, 6, 4}, {Kind::Spread, 2, 1}, {Kind::Halves, 0, 1}}},
    {Type::Q5_1,
     &MatmulKernels::q5_1,
     &TileKernels::q5_1,
     3,
     {{Kind::Words, 8, 4}, {Kind::Spread, 4, 1}, {Kind::Halves, 0, 2}}},
    {Type::Q8_0, &MatmulKernels::q8_0, &TileKernels::q8_0, 2, {{Kind::Words, 2, 8}, {Kind::Halves, 0, 1}}},
    {Type::IQ4_NL,
     &MatmulKernels::iq4_nl,
     &TileKernels::iq4_nl,
     2,
     {{Kind::Words, 2, 4}, {Kind::Halves, 0, 1}}},
    {Type::MXFP4, &MatmulKernels::mxfp4, &TileKernels::mxfp4, 2, {{Kind::Words, 1, 4}, {Kind::Bytes, 0, 1}}},
    {Type::Q2_K, &MatmulKernels::q2_k, &TileKernels::q2_k, 2, {{Kind::Halves, 80, 2}, {Kind::Words, 0, 20}}},
    {Type::Q3_K,
     &MatmulKernels::q3_k,
     &TileKernels::q3_k,
     3,
     {{Kind::Halves, 108, 1}, {Kind::Words, 96, 3}, {Kind::Words, 0, 24}}},
    {Type::Q4_K, &MatmulKernels::q4_k, &TileKernels::q4_k, 2, {{Kind::Halves, 0, 2}, {Kind::Words, 4, 35}}},
    {Type::Q5_K, &MatmulKernels::q5_k, &TileKernels::q5_k, 2, {{Kind::Halves, 0, 2}, {Kind::Words, 4, 43}}},
    {Type::Q6_K,
     &MatmulKernels::q6_k,
     &TileKernels::q6_k,
     6,
     {{Kind::Halves, 208, 1},
      {Kind::Words, 192, 4},
      {Kind::Words, 0, 16},
      {Kind::Words, 128, 8},
      {Kind::Words, 64, 16},
      {Kind::Words, 160, 8}}},
    {Type::IQ4_XS,
     &MatmulKernels::iq4_xs,
     &TileKernels::iq4_xs,
     2,
     {{Kind::Halves, 0, 2}, {Kind::Words, 4, 33}}},
};

const Layout* find_layout(Type type) {
  const auto* found = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                   [type](const Layout& layout) { return layout.type == type; });
  return found == std::end(kLayouts) ? nullptr : found;
}

const Layout& layout_of(Type type) {
  const Layout* layout = find_layout(type);
  CHECK(layout != nullptr, "{} has no packed form", quant::type_info(type).name);
  return *layout;
}

std::span<const Part> parts_of(const Layout& layout) {
  return {layout.part, static_cast<size_t>(layout.parts)};
}

int unit_bytes(Kind kind) { return kind == Kind::Bytes ? 1 : kind == Kind::Halves ? 2 : 4; }

/// Bit 4j + b of the file's word goes to bit j of byte b: a transposition of 8 nibbles into 4 bytes.
uint32_t spread(uint32_t word) {
  uint32_t out = 0;
  for (unsigned j = 0; j < 8; ++j) out |= ((word >> (4 * j) & 15u) * 0x00204081u & 0x01010101u) << j;
  return out;
}

uint32_t gather(uint32_t word) {
  uint32_t out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= (word >> (8 * (i % 4) + i / 4) & 1u) << i;
  return out;
}

/// Copies `count` units of a block of each of `rows` rows, row_bytes apart: 16 rows lie side by side in
/// `packed`.
template <int kBytes>
void pack_units(const uint8_t* file, int64_t row_bytes, int count, int64_t rows, uint8_t* packed) {
  const auto copy = [&](int64_t many) {
    for (int i = 0; i < count; ++i) {
      for (int64_t row = 0; row < many; ++row) {
        std::memcpy(packed + (i * kPanelRows + row) * kBytes, file + row * row_bytes + i * kBytes, kBytes);
      }
    }
  };
  if (rows == kPanelRows) return copy(kPanelRows);  // a number of times that the compiler knows
  copy(rows);
}
template <int kBytes>
void unpack_units(const uint8_t* packed, int count, int64_t row, uint8_t* file) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(file + i * kBytes, packed + (i * kPanelRows + row) * kBytes, kBytes);
  }
}

void pack_part(const Part& part, const uint8_t* block, int64_t row_bytes, int64_t rows, uint8_t* packed) {
  const uint8_t* file = block + part.offset;
  switch (part.kind) {
    case Kind::Words: return pack_units<4>(file, row_bytes, part.count, rows, packed);
    case Kind::Halves: return pack_units<2>(file, row_bytes, part.count, rows, packed);
    case Kind::Bytes: return pack_units<1>(file, row_bytes, part.count, rows, packed);
    case Kind::Spread: break;
  }
  for (int64_t row = 0; row < rows; ++row) {
    uint32_t word;
    std::memcpy(&word, file + row * row_bytes, sizeof word);
    word = spread(word);
    std::memcpy(packed + row * 4, &word, sizeof word);
  }
}

void unpack_part(const Part& part, const uint8_t* packed, int64_t row, uint8_t* block) {
  uint8_t* file = block + part.offset;
  switch (part.kind) {
    case Kind::Words: return unpack_units<4>(packed, part.count, row, file);
    case Kind::Halves: return unpack_units<2>(packed, part.count, row, file);
    case Kind::Bytes: return unpack_units<1>(packed, part.count, row, file);
    case Kind::Spread: break;
  }
  uint32_t word;
  std::memcpy(&word, packed + row * 4, sizeof word);
  word = gather(word);
  std::memcpy(file, &word, sizeof word);
}

}  // namespace

bool can_pack(Type type) { return find_layout(type) != nullptr; }

bool takes_quantized(Type type) { return layout_of(type).unpack != nullptr; }

PanelProduct panel_product(const MatmulKernels& kernels, Type type) {
  return kernels.*layout_of(type).product;
}

PanelUnpack panel_unpack(const TileKernels* tiles, Type type) {
  const Layout& layout = layout_of(type);
  return tiles == nullptr || layout.unpack == nullptr ? nullptr : tiles->*layout.unpack;
}

int tiled_from(Type type) { return type == Type::Q4_0 || type == Type::Q4_1 ? kLeastTiled : 20; }

int64_t panel_bytes(Type type, int64_t columns) {
  return kPanelRows * quant::bytes_of(quant::type_info(type), columns);
}

int64_t packed_bytes(Type type, int64_t rows, int64_t columns) {
  return (rows + kPanelRows - 1) / kPanelRows * panel_bytes(type, columns);
}

void pack_panel(Type type, const std::byte* rows_data, int64_t row_bytes, int64_t rows, int64_t columns,
                uint8_t* panel) {
  const quant::TypeInfo& info = quant::type_info(type);
  const Layout& layout = layout_of(type);
  if (rows < kPanelRows) std::memset(panel, 0, static_cast<size_t>(panel_bytes(type, columns)));
  const int64_t blocks = columns / info.block;
  for (int64_t b = 0; b < blocks; ++b) {
    for (const Part& part : parts_of(layout)) {
      pack_part(part, reinterpret_cast<const uint8_t*>(rows_data) + b * info.bytes, row_bytes, rows, panel);
      panel += part.count * unit_bytes(part.kind) * kPanelRows;
    }
  }
}

void decode_packed_row(Type type, const uint8_t* panel, int64_t row, int64_t columns, float* out) {
  const quant::TypeInfo& info = quant::type_info(type);
  const Layout& layout = layout_of(type);
  uint8_t block[256];  // no type's block is larger than Q6_K's 210 bytes
  for (int64_t c = 0; c < columns; c += info.block) {
    for (const Part& part : parts_of(layout)) {
      unpack_part(part, panel, row, block);
      panel += part.count * unit_bytes(part.kind) * kPanelRows;
    }
    info.decode(reinterpret_cast<const std::byte*>(block), out + c, info.block);
  }
}

}  // namespace sluice::backend::cpu
