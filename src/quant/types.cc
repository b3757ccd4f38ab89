#include "quant/types.h"

#include <array>

#include "base/check.h"
#include "quant/codecs.h"

namespace sluice::quant {
namespace {

// Layouts as ggml defines them. Types that files never hold (Q8_1) and types whose layout changed over time
// are left out: a file with one is refused by its type id.
constexpr TypeInfo kTypes[] = {
    {Type::F32, "F32", 1, 4, decode_f32, encode_f32},
    {Type::F16, "F16", 1, 2, decode_f16, encode_f16},
    {Type::Q4_0, "Q4_0", 32, 18, decode_q4_0, encode_q4_0},
    {Type::Q4_1, "Q4_1", 32, 20, decode_q4_1, nullptr},
    {Type::Q5_0, "Q5_0", 32, 22, decode_q5_0, nullptr},
    {Type::Q5_1, "Q5_1", 32, 24, decode_q5_1, nullptr},
    {Type::Q8_0, "Q8_0", 32, 34, decode_q8_0, encode_q8_0},
    {Type::Q2_K, "Q2_K", 256, 84, decode_q2_k, nullptr},
    {Type::Q3_K, "Q3_K", 256, 110, decode_q3_k, nullptr},
    {Type::Q4_K, "Q4_K", 256, 144, decode_q4_k, nullptr},
    {Type::Q5_K, "Q5_K", 256, 176, decode_q5_k, nullptr},
    {Type::Q6_K, "Q6_K", 256, 210, decode_q6_k, nullptr},
    {Type::Q8_K, "Q8_K", 256, 292, nullptr, nullptr},
    {Type::IQ2_XXS, "IQ2_XXS", 256, 66, decode_iq2_xxs, nullptr},
    {Type::IQ2_XS, "IQ2_XS", 256, 74, decode_iq2_xs, nullptr},
    {Type::IQ3_XXS, "IQ3_XXS", 256, 98, decode_iq3_xxs, nullptr},
    {Type::IQ1_S, "IQ1_S", 256, 50, decode_iq1_s, nullptr},
    {Type::IQ4_NL, "IQ4_NL", 32, 18, decode_iq4_nl, nullptr},
    {Type::IQ3_S, "IQ3_S", 256, 110, decode_iq3_s, nullptr},
    {Type::IQ2_S, "IQ2_S", 256, 82, decode_iq2_s, nullptr},
    {Type::IQ4_XS, "IQ4_XS", 256, 136, decode_iq4_xs, nullptr},
    {Type::I8, "I8", 1, 1, nullptr, nullptr},
    {Type::I16, "I16", 1, 2, nullptr, nullptr},
    {Type::I32, "I32", 1, 4, nullptr, nullptr},
    {Type::I64, "I64", 1, 8, nullptr, nullptr},
    {Type::F64, "F64", 1, 8, nullptr, nullptr},
    {Type::IQ1_M, "IQ1_M", 256, 56, decode_iq1_m, nullptr},
    {Type::BF16, "BF16", 1, 2, decode_bf16, encode_bf16},
    {Type::TQ1_0, "TQ1_0", 256, 54, nullptr, nullptr},
    {Type::TQ2_0, "TQ2_0", 256, 66, nullptr, nullptr},
    {Type::MXFP4, "MXFP4", 32, 17, decode_mxfp4, nullptr},
    {Type::NVFP4, "NVFP4", 64, 36, decode_nvfp4, nullptr},
    {Type::Q1_0, "Q1_0", 128, 18, nullptr, nullptr},
};

constexpr size_t kIds = 64;

/// Row of each id, filled at compile time: files of many tensors look types up often.
constexpr std::array<const TypeInfo*, kIds> kById = [] {
  std::array<const TypeInfo*, kIds> rows{};
  for (const TypeInfo& row : kTypes) rows[static_cast<size_t>(row.type)] = &row;
  return rows;
}();

}  // namespace

std::span<const TypeInfo> all_types() { return kTypes; }

const TypeInfo* find_type(uint32_t gguf_id) { return gguf_id < kIds ? kById[gguf_id] : nullptr; }

const TypeInfo* find_type(const std::string& name) {
  for (const TypeInfo& row : kTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const TypeInfo& type_info(Type type) {
  const TypeInfo* row = find_type(static_cast<uint32_t>(type));
  CHECK(row != nullptr, "type id {}", static_cast<uint32_t>(type));
  return *row;
}

}  // namespace sluice::quant
