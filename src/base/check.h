// CHECK: a condition that only a bug of ours can break. Always on: it stands at doors, never in inner loops.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sluice {

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      const std::string& detail) {
  fmt::print(stderr, "sluice: internal error at {}:{}: {} does not hold{}{}\n", file, line, condition,
             detail.empty() ? "" : ": ", detail);
  std::abort();
}

}  // namespace sluice

/// CHECK(condition) or CHECK(condition, "format {}", values...).
#define CHECK(condition, ...)                                                                      \
  do {                                                                                             \
    if (!(condition))                                                                              \
      ::sluice::check_failed(__FILE__, __LINE__, #condition, ::sluice::check_detail(__VA_ARGS__)); \
  } while (false)

namespace sluice {
inline std::string check_detail() { return {}; }
template <typename... Args>
std::string check_detail(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace sluice
