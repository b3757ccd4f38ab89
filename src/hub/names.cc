#include "hub/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace sluice::hub {
namespace {

bool is_part(std::string_view part) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  // Two dashes part user and name in the cache.
  return !part.empty() && part.size() <= 96 && std::ranges::all_of(part, plain) && part.front() != '.' &&
         part.front() != '-' && part.back() != '.' && part.back() != '-' &&
         part.find("..") == std::string_view::npos && part.find("--") == std::string_view::npos;
}

}  // namespace

Repository Repository::parse(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1)))
    return {std::string(text.substr(0, slash)), std::string(text.substr(slash + 1))};
  throw UsageError(fmt::format("{}: expected USER/REPO of the model hub", text));
}

ModelName ModelName::parse(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {Repository::parse(text), ""};
  const std::string_view quant = text.substr(colon + 1);
  if (!is_safe_path(quant)) throw UsageError(fmt::format("{}: expected USER/REPO:QUANT, as Q4_K_M", text));
  return {Repository::parse(text.substr(0, colon)), quant == "latest" ? "" : std::string(quant)};
}

bool is_safe_path(std::string_view path) {
  constexpr size_t kMostBytes = 1024, kMostPart = 200, kMostParts = 16;
  if (path.empty() || path.size() > kMostBytes) return false;
  for (size_t parts = 1;; ++parts) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    const auto bad = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\'; };
    if (part.empty() || part == "." || part == ".." || part.size() > kMostPart || parts > kMostParts ||
        std::ranges::any_of(part, bad))
      return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool is_hex(std::string_view text, size_t least) {
  const auto digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() >= least && text.size() <= 64 && std::ranges::all_of(text, digit);
}

std::string size_text(int64_t bytes) {
  for (const auto& [size, unit] : {std::pair{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}) {
    if (static_cast<double>(bytes) >= size)
      return fmt::format("{:.2f} {}", static_cast<double>(bytes) / size, unit);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace sluice::hub
