#include "backend/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cpu/simd/layout.h"
#include "base/check.h"

namespace sluice::backend::cpu {
namespace {

using quant::Type;

/// One of a table, or CHECK: who asks has asked can_pack before.
template <typename T>
const T& of(const ByFormat<T>& table, Type type) {
  const int format = format_of(type);
  CHECK(format >= 0, "{} has no packed form", quant::type_info(type).name);
  return table[static_cast<size_t>(format)];
}

const Layout& layout_of(Type type) {
  const Layout* layout = find_layout(type);
  CHECK(layout != nullptr, "{} has no packed form", quant::type_info(type).name);
  return *layout;
}

std::span<const Part> parts_of(const Layout& layout) {
  return {layout.part, static_cast<size_t>(layout.parts)};
}

/// Of the bits of a word, exchanges those `by` apart whose lower one is in `lower`.
struct Exchange {
  uint32_t lower;
  int by;
  uint32_t operator()(uint32_t word) const {
    const uint32_t differ = (word ^ word >> by) & lower;
    return word ^ differ ^ differ << by;
  }
};
/// The number 4j + b of a bit is j's three bits and b's two; each of these swaps two of the five. After all,
/// bit 4j + b is bit j of byte b: 8 nibbles are transposed into 4 bytes.
constexpr Exchange kSpread[] = {{0x0000CCCC, 14}, {0x00AA00AA, 7}, {0x0C0C0C0C, 2}, {0x22222222, 1}};

uint32_t spread(uint32_t word) {
  for (const Exchange& exchange : kSpread) word = exchange(word);
  return word;
}

uint32_t gather(uint32_t word) {
  for (int i = std::size(kSpread); i-- > 0;) word = kSpread[i](word);
  return word;
}

/// Transposes a square of units out of 16 bytes of as many rows, row_bytes apart, to rows of a panel: the
/// halves of neighbours half a square apart are interleaved until everybody has met. In vectors of 16 bytes,
/// which every processor has that this is compiled for.
template <typename Unit>
void transpose(const uint8_t* file, int64_t row_bytes, uint8_t* packed) {
  constexpr int kUnits = 16 / sizeof(Unit);
  typedef Unit Vector __attribute__((vector_size(16)));
  Vector v[kUnits], next[kUnits];
  for (int i = 0; i < kUnits; ++i) std::memcpy(&v[i], file + i * row_bytes, sizeof v[i]);
  for (int stage = 1; stage < kUnits; stage *= 2) {
    for (int i = 0; i < kUnits / 2; ++i) {
      const Vector a = v[i], b = v[i + kUnits / 2];
      if constexpr (kUnits == 4) {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      } else {
        next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
      }
    }
    std::copy_n(next, kUnits, v);
  }
  for (int i = 0; i < kUnits; ++i) std::memcpy(packed + i * kPanelRows * sizeof(Unit), &v[i], sizeof v[i]);
}

/// Some blocks of a panel on their way: in the file's rows, row_bytes apart, and packed.
struct Blocks {
  const uint8_t* file;
  int64_t row_bytes, rows, count;
  int64_t bytes;  // of a block of one row
  uint8_t* packed;
};

/// `count` units of every block: those of 16 rows lie side by side in `packed`.
template <typename Unit>
void pack_units(Blocks blocks, int64_t count) {
  constexpr int64_t kBytes = sizeof(Unit), kUnits = 16 / kBytes;
  const int64_t row_bytes = blocks.row_bytes;
  const auto copy = [&](const uint8_t* file, uint8_t* packed, int64_t rows) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(packed + (i * kPanelRows + row) * kBytes, file + row * row_bytes + i * kBytes, kBytes);
      }
    }
  };
  for (; blocks.count > 0; --blocks.count) {
    const uint8_t* file = blocks.file;
    uint8_t* packed = blocks.packed;
    blocks.file += blocks.bytes;
    blocks.packed += kPanelRows * blocks.bytes;
    if (blocks.rows < kPanelRows) {
      copy(file, packed, blocks.rows);
    } else if (kBytes == 1 || count < kUnits) {
      copy(file, packed, kPanelRows);  // a number of times that the compiler knows
    } else {
      if constexpr (kBytes > 1) {
        // The last square may cover what the one before has written.
        for (int64_t i = 0; i < count; i += kUnits) {
          const int64_t first = std::min(i, count - kUnits);
          for (int64_t row = 0; row < kPanelRows; row += kUnits) {
            transpose<Unit>(file + row * row_bytes + first * kBytes, row_bytes,
                            packed + (first * kPanelRows + row) * kBytes);
          }
        }
      }
    }
  }
}

/// Fifth bits: a word of each row.
void pack_spread(const Blocks& blocks) {
  for (int64_t b = 0; b < blocks.count; ++b) {
    const uint8_t* file = blocks.file + b * blocks.bytes;
    uint32_t words[kPanelRows] = {};
    for (int64_t row = 0; row < blocks.rows; ++row) {
      std::memcpy(&words[row], file + row * blocks.row_bytes, sizeof words[row]);
    }
    for (uint32_t& word : words) word = spread(word);
    std::memcpy(blocks.packed + b * kPanelRows * blocks.bytes, words, sizeof words);
  }
}

template <int kBytes>
void unpack_units(const uint8_t* packed, int count, int64_t row, uint8_t* file) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(file + i * kBytes, packed + (i * kPanelRows + row) * kBytes, kBytes);
  }
}

/// `count` units of a part of every block.
void pack_part(const Part& part, int64_t count, Blocks blocks) {
  blocks.file += part.offset;
  switch (part.kind) {
    case PartKind::Words: return pack_units<uint32_t>(blocks, count);
    case PartKind::Halves: return pack_units<uint16_t>(blocks, count);
    case PartKind::Bytes: return pack_units<uint8_t>(blocks, count);
    case PartKind::Spread: return pack_spread(blocks);
  }
}

void unpack_part(const Part& part, const uint8_t* packed, int64_t row, uint8_t* block) {
  uint8_t* file = block + part.offset;
  switch (part.kind) {
    case PartKind::Words: return unpack_units<4>(packed, part.count, row, file);
    case PartKind::Halves: return unpack_units<2>(packed, part.count, row, file);
    case PartKind::Bytes: return unpack_units<1>(packed, part.count, row, file);
    case PartKind::Spread: break;
  }
  uint32_t word;
  std::memcpy(&word, packed + row * 4, sizeof word);
  word = gather(word);
  std::memcpy(file, &word, sizeof word);
}

}  // namespace

bool can_pack(Type type) { return find_layout(type) != nullptr; }

bool takes_quantized(Type type) { return format_of(type) >= kFloatFormats; }

const Product& product_of(const MatmulKernels& kernels, Type type) {
  const int format = format_of(type);
  CHECK(format >= 0, "{} has no packed form", quant::type_info(type).name);
  if (format < kFirstLow) return kernels.small_blocks[format];
  if (format < kFirstLarge) return kernels.low_blocks[format - kFirstLow];
  if (format < kFirstGrid) return kernels.large_blocks[format - kFirstLarge];
  return kernels.grid_blocks[format - kFirstGrid];
}

PanelUnpack panel_unpack(const UnpackKernels* kernels, Type type) {
  return kernels == nullptr ? nullptr : of(*kernels, type);
}

TiledProduct tiled_product(const TiledProducts* kernels, Type type) {
  return kernels == nullptr ? TiledProduct{} : of(*kernels, type);
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
  // A float type's block is one number: the whole row is taken for one.
  const int64_t together = info.block == 1 ? columns : 1, bytes = info.bytes * together;
  // Some blocks, part by part: what comes of them stays in the first-level cache.
  constexpr int64_t kBytesAtOnce = 4096;
  const int64_t at_once = std::max<int64_t>(1, kBytesAtOnce / (kPanelRows * bytes));
  const auto* file = reinterpret_cast<const uint8_t*>(rows_data);
  // The panel behind this one is asked for meanwhile: 16 rows side by side are no stream that a processor
  // sees.
  const uint8_t* ahead = file + kPanelRows * row_bytes;
  for (int64_t left = columns / info.block / together; left > 0; left -= at_once) {
    const Blocks blocks{file, row_bytes, rows, std::min(left, at_once), bytes, panel};
    int64_t packed = 0;  // of a block
    for (const Part& part : parts_of(layout)) {
      Blocks here = blocks;
      here.packed += packed;
      pack_part(part, part.count * together, here);
      packed += part.count * together * unit_bytes(part.kind) * kPanelRows;
    }
    for (int64_t line = 0; line < blocks.count * kPanelRows * bytes; line += 64)
      __builtin_prefetch(ahead + line);
    file += blocks.count * bytes;
    panel += blocks.count * kPanelRows * bytes;
    ahead += blocks.count * kPanelRows * bytes;
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
