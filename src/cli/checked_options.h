// Values of flags that are checked before any work begins.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/cli11.h"

namespace sluice::cli {

/// The names of a table's rows, for CLI::IsMember.
template <typename Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

/// Numbers of a range. CLI::Range takes NaN, which is neither below nor above.
CLI::Validator number_range(double low, double high);

/// Adds a flag whose value is a size (memory_size_of), of so many bytes at least.
CLI::Option* add_size_option(CLI::App& command, const std::string& flag, std::function<void(int64_t)> take,
                             const std::string& help, int64_t least = 1);

/// Adds --sms: 0 is all.
void add_sms_option(CLI::App& command, int& sms);

/// Throws Error where no file can be written at this path ("-": standard output, which is no file). For long
/// work whose result would be lost.
void expect_writable(const std::string& path);

}  // namespace sluice::cli
