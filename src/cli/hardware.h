// Hardware that forecasts are made for: figures that its makers state, and amounts as users write them.
#pragma once

#include <span>
#include <string>

#include "program/backend.h"

namespace sluice::cli {

struct Hardware {
  const char* name;
  double bytes_per_second, flops;
  const char* source;  ///< whose figures these are
};

std::span<const Hardware> hardware_presets();

/// "100GB/s", "3.35 TB/s", "2T", "989e12": a number above 0 with k, M, G or T before its unit, which is B/s,
/// FLOP/s, FLOPS or left away. Throws UsageError that names the flag.
double parse_rate(const std::string& flag, const std::string& text);

}  // namespace sluice::cli
