// THE TABLE of number formats: what a tensor's bytes mean. One row a type, one codec file a family.
// Knows bytes and numbers; nothing of files, tensors or models.
// Formats: the GGML block layouts as GGUF files hold them (ggml's type ids are the file format's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::quant {

/// Number formats by their GGUF ids.
enum class Type : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  Q8_K = 15,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
};

/// One row: `block` numbers take `bytes` bytes.
struct TypeInfo {
  Type type;
  const char* name;
  int block;
  int bytes;
  /// Decodes `count` numbers (a multiple of block). Null: the layout is known, the arithmetic is not
  /// supported.
  void (*decode)(const std::byte* in, float* out, int64_t count);
  /// Encodes `count` numbers (a multiple of block). Null: no encoder.
  void (*encode)(const float* in, std::byte* out, int64_t count);
};

/// Every row, those without a codec included.
std::span<const TypeInfo> all_types();

/// The row of a GGUF type id, or null when the id is unknown.
const TypeInfo* find_type(uint32_t gguf_id);

/// The row whose name this is (case matters: "Q4_K"), or null.
const TypeInfo* find_type(const std::string& name);

/// The row of a type that is known to have one.
const TypeInfo& type_info(Type type);

/// Bytes of `count` numbers; count is a multiple of the block.
inline int64_t bytes_of(const TypeInfo& info, int64_t count) { return count / info.block * info.bytes; }

}  // namespace sluice::quant
