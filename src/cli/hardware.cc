#include "cli/hardware.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace sluice::cli {
namespace {

// Memory bandwidth and dense arithmetic as the makers' data sheets state them; what programs reach is less
// (reads reach 75 to 95 % of such bandwidths). Arithmetic is 16-bit matrix products with 32-bit sums where a
// maker states them, and 32-bit otherwise (Apple states none: cores times clock times two, as commonly
// reported).
constexpr Hardware kPresets[] = {
    {"ddr5-desktop", 96e9, 2.3e12,
     "two channels of DDR5-6000: 2 x 8 B x 6.0 GT/s; AMD Ryzen 9 7950X: 16 cores x 4.5 GHz x 32 f32 FLOP a "
     "cycle"},
    {"m2", 100e9, 3.6e12, "Apple: M2, 100 GB/s unified memory; 10-core GPU, about 3.6 TFLOP/s f32"},
    {"m3-max", 400e9, 14.2e12, "Apple: M3 Max with 40-core GPU, 400 GB/s; about 14.2 TFLOP/s f32"},
    {"m4-max", 546e9, 18.4e12, "Apple: M4 Max with 40-core GPU, 546 GB/s; about 18.4 TFLOP/s f32"},
    {"rtx-4090", 1008e9, 165.2e12,
     "NVIDIA, Ada architecture white paper: 1008 GB/s, 165.2 TFLOP/s FP16, sums in FP32"},
    {"rtx-5090", 1792e9, 209.5e12,
     "NVIDIA, RTX Blackwell white paper: 1792 GB/s, 209.5 TFLOP/s FP16, sums in FP32"},
    {"h100", 3350e9, 989.4e12, "NVIDIA, H100 SXM data sheet: 3.35 TB/s, 989.4 TFLOP/s BF16 without sparsity"},
    {"h200", 4800e9, 989.4e12, "NVIDIA, H200 SXM data sheet: 4.8 TB/s, 989.4 TFLOP/s BF16 without sparsity"},
};

}  // namespace

std::span<const Hardware> hardware_presets() { return kPresets; }

double parse_rate(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const char* const number_end = end;
  std::string unit(end);
  std::erase(unit, ' ');
  for (const auto& [prefix, factor] : {std::pair{'k', 1e3}, {'M', 1e6}, {'G', 1e9}, {'T', 1e12}}) {
    if (unit.empty() || unit[0] != prefix) continue;
    value *= factor;
    unit.erase(0, 1);
    break;
  }
  const bool known = unit.empty() || unit == "B/s" || unit == "FLOP/s" || unit == "FLOPS";
  if (number_end == text.c_str() || !known || !std::isfinite(value) || value <= 0 || value > 1e18) {
    throw UsageError(fmt::format("{} {}: expected an amount as 100GB/s, 3.35TB/s or 2T", flag, text));
  }
  return value;
}

}  // namespace sluice::cli
