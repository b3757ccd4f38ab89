#include "cli/hardware.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace sluice::cli {
namespace {

// Memory bandwidth as the makers state it; what programs reach is less (reads reach 75 to 95 % of it).
// Arithmetic is dense 16-bit matrix products with 32-bit sums where a maker states them. Makers print sparse
// rates: halved here, and for GeForce halved again, whose 16-bit products are half as fast with 32-bit sums.
// Apple states such a rate for the M2 alone: the others' is arithmetic units (128 a core) x clock x 2, clocks
// as others have read them (reports for the M3 Max go from 1.40 to 1.60 GHz, for the M4 Max to 1.80).
// GeForce cards before the 4090: tensor cores of an SM make 256 products of halves with 32-bit sums a cycle
// (Ampere GA102 white paper: 71 TFLOP/s of an RTX 3090; Ada keeps it), times SMs and boost clock of the
// card's page. PCI Express, one way, before its packets' heads: 15.75 GB/s of 8 lanes of 4.0, 31.5 of 16, 63
// of 16 of 5.0.
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kEightLanes4 = 15.75e9, kSixteenLanes4 = 31.5e9, kSixteenLanes5 = 63e9;

constexpr Hardware kPresets[] = {
    {"ddr5-desktop", 96e9, 2.3e12,
     "two channels of DDR5-6000 (a profile of the modules; processors are specified for 5200 to 6400): 2 x 8 "
     "B x "
     "6.0 GT/s; AMD Ryzen 9 7950X: 16 cores x 4.5 GHz (base) x 32 f32 FLOP a cycle (two 256-bit FMA)"},
    {"m2", 100e9, 3.6e12,
     "Apple's announcement of the M2, 6 June 2022: 100 GB/s, 10-core GPU with 3.6 TFLOP/s, f32"},
    {"m3-max", 400e9, 14.3e12,
     "Apple, technical specifications of the MacBook Pro of November 2023: 400 GB/s with the 40-core GPU; "
     "5120 "
     "units x 1.40 GHz x 2, f32"},
    {"m4-max", 546e9, 17.2e12,
     "Apple's announcement of the M4 Max, 30 October 2024: 546 GB/s with the 40-core GPU; 5120 units x 1.68 "
     "GHz "
     "x 2, f32"},
    {"strix-halo", 256e9, 59.4e12,
     "AMD, Ryzen AI Max+ 395: 256 bits x LPDDR5X-8000; 40 compute units x 512 FP16 FLOP a cycle x 2.9 GHz"},
    {"rtx-3060", 360e9, 25.5e12,
     "NVIDIA, GeForce RTX 3060 12 GB: 192 bits x 15 Gb/s; 28 SMs x 512 FLOP a cycle x 1.78 GHz", 12 * kGiB,
     kSixteenLanes4},
    {"rtx-4060-ti", 288e9, 44.1e12,
     "NVIDIA, GeForce RTX 4060 Ti 16 GB: 128 bits x 18 Gb/s; 34 SMs x 512 FLOP a cycle x 2.535 GHz",
     16 * kGiB, kEightLanes4},
    {"rtx-3090", 936e9, 71e12,
     "NVIDIA, Ampere GA102 white paper: 384 bits x 19.5 Gb/s; 71 TFLOP/s FP16, sums in FP32", 24 * kGiB,
     kSixteenLanes4},
    {"rtx-4090", 1008e9, 165.2e12,
     "NVIDIA, Ada architecture white paper: 384 bits x 21 Gb/s; 165.2 TFLOP/s FP16, sums in FP32", 24 * kGiB,
     kSixteenLanes4},
    {"rtx-5090", 1792e9, 209.5e12,
     "NVIDIA, RTX Blackwell white paper: 512 bits x 28 Gb/s; 838 TFLOP/s FP16 sparse = 209.5 dense, sums in "
     "FP32",
     32 * kGiB, kSixteenLanes5},
    {"h100", 3350e9, 989.4e12,
     "NVIDIA, H100 SXM data sheet: 3.35 TB/s; 1979 TFLOP/s BF16 sparse = 989.4 dense", 80 * kGiB,
     kSixteenLanes5},
    {"h200", 4800e9, 989.4e12,
     "NVIDIA, H200 SXM data sheet: 4.8 TB/s; 1979 TFLOP/s BF16 sparse = 989.4 dense", 141'000'000'000,
     kSixteenLanes5},
};

}  // namespace

std::span<const Hardware> hardware_presets() { return kPresets; }

const Hardware* find_hardware(const std::string& name) {
  for (const Hardware& one : kPresets) {
    if (name == one.name) return &one;
  }
  return nullptr;
}

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
  const bool known = unit.empty() || unit == "B" || unit == "B/s" || unit == "FLOP/s" || unit == "FLOPS";
  if (number_end == text.c_str() || !known || !std::isfinite(value) || value <= 0 || value > 1e18) {
    throw UsageError(fmt::format("{} {}: expected an amount as 100GB/s, 1.1GB or 2T", flag, text));
  }
  return value;
}

}  // namespace sluice::cli
