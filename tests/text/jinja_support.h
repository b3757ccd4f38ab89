// What the tests of templates share.
#pragma once

#include <ctime>

namespace sluice::text::jinja {

/// 2025-07-15 14:30:05, a Tuesday.
inline std::tm fixed_clock() {
  std::tm out{};
  out.tm_year = 125;
  out.tm_mon = 6;
  out.tm_mday = 15;
  out.tm_hour = 14;
  out.tm_min = 30;
  out.tm_sec = 5;
  out.tm_wday = 2;
  out.tm_yday = 195;
  return out;
}

}  // namespace sluice::text::jinja
