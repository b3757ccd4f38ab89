// Hardware that forecasts are made for: figures that its makers state, and amounts as users write them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "program/backend.h"

namespace sluice::cli {

struct Hardware {
  const char* name;
  double bytes_per_second, flops;
  const char* source;                ///< whose figures these are
  int64_t gpu_bytes = 0;             ///< of a card's own memory; 0: it has the machine's
  double link_bytes_per_second = 0;  ///< to a card, one way
};

std::span<const Hardware> hardware_presets();
/// Null when there is none of this name.
const Hardware* find_hardware(const std::string& name);

/// "100GB/s", "3.35 TB/s", "2T", "989e12": a number above 0 with k, M, G or T before its unit, which is B/s,
/// FLOP/s, FLOPS or left away. Throws UsageError that names the flag.
double parse_rate(const std::string& flag, const std::string& text);

}  // namespace sluice::cli
