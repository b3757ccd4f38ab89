#include "cli/checked_options.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cli/fit.h"

namespace sluice::cli {

CLI::Validator number_range(double low, double high) {
  const auto problem = [=](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
    return fmt::format("Value {} not in range {} to {}", text, low, high);
  };
  return {problem, CLI::Range(low, high).get_description()};
}

CLI::Option* add_size_option(CLI::App& command, const std::string& flag, std::function<void(int64_t)> take,
                             const std::string& help, int64_t least) {
  const auto read = [flag, take = std::move(take), least](const std::string& text) {
    int64_t bytes = 0;
    try {
      bytes = memory_size_of(text);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{} {}", flag, error.what()));
    }
    if (bytes < least) throw UsageError(fmt::format("{} {}: expected {} bytes at least", flag, text, least));
    take(bytes);
  };
  return command.add_option_function<std::string>(flag, read, help)->type_name("SIZE");
}

void add_sms_option(CLI::App& command, int& sms) {
  command
      .add_option(
          "--sms", sms,
          "of a CUDA GPU's SMs so many, or somewhat more as the driver shares them out: what a smaller "
          "GPU would compute (needs a driver for CUDA 12.5)")
      ->check(CLI::Range(1, 1 << 10));
}

void expect_writable(const std::string& path) {
  if (path.empty() || path == "-") return;
  struct stat info {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (!there && errno != ENOENT) fail("{}: {}", path, std::strerror(errno));
  if (there && S_ISDIR(info.st_mode)) fail("{}: {}", path, std::strerror(EISDIR));
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::access(there ? path.c_str() : folder.c_str(), W_OK) != 0) fail("{}: {}", path, std::strerror(errno));
}

}  // namespace sluice::cli
