#include "cli/tuning_file.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/output.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr uintmax_t kMostBytes = 1 << 20;

/// One line for a process, whatever number of backends it makes.
void warn(const std::string& path, const std::string& what) {
  static bool warned = false;
  if (!std::exchange(warned, true))
    note("sluice: {}: {}; built-in values are used, `sluice tune` measures anew\n", terminal_safe(path),
         what);
}

/// The file, or a discarded value when it is not what write_tuning writes.
Json parsed(const std::string& path) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kMostBytes || error) return Json(Json::value_t::discarded);
  const std::string text = read_file(path);
  if (!text::is_json(text)) return Json(Json::value_t::discarded);
  Json json = text::parse_plain(text);
  const bool known = json.is_object() && json.contains("format") && json["format"] == kFormat &&
                     json.contains("devices") && json["devices"].is_object();
  return known ? json : Json(Json::value_t::discarded);
}

/// "CPU, amx, 2 threads" of "CPU, amx, 2 threads, kernels 1".
std::string without_version(const std::string& device) {
  return device.substr(0, device.rfind(", kernels "));
}

}  // namespace

std::string tuning_path() {
  if (const char* path = std::getenv("SLUICE_TUNING"); path != nullptr) return path;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::string(cache) + "/sluice/tuning.json";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/sluice/tuning.json";
  return "";
}

program::Tuning read_tuning(const std::string& path, const std::string& device) {
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return {};
  try {
    const Json json = parsed(path);
    if (json.is_discarded()) {
      warn(path, "not what `sluice tune` writes");
      return {};
    }
    const Json& devices = json["devices"];
    if (!devices.contains(device)) {
      for (const auto& [known, entry] : devices.items()) {
        if (without_version(known) == without_version(device))
          warn(path, fmt::format("measured with other kernels than these ({})", terminal_safe(device)));
      }
      return {};
    }
    program::Tuning tuning;
    for (const auto& [key, entry] : devices.at(device).items())
      tuning[key] = entry.at("value").get<int64_t>();
    return tuning;
  } catch (const std::exception&) {  // an entry of another kind, or the file went away
    warn(path, "not what `sluice tune` writes");
    return {};
  }
}

void write_tuning(const std::string& path, const std::string& device,
                  const std::vector<profile::Choice>& choices) {
  if (path.empty()) fail("no place for tuned values: neither SLUICE_TUNING, XDG_CACHE_HOME nor HOME is set");
  std::error_code error;
  Json json = std::filesystem::is_regular_file(path, error) ? parsed(path) : Json(Json::value_t::discarded);
  if (json.is_discarded()) json = {{"format", kFormat}, {"devices", Json::object()}};
  Json& devices = json["devices"];
  std::vector<std::string> old;
  for (const auto& [known, entry] : devices.items()) {
    if (without_version(known) == without_version(device)) old.push_back(known);
  }
  for (const std::string& known : old) devices.erase(known);
  Json entries = Json::object();
  for (const profile::Choice& choice : choices) {
    if (choice.best == choice.variants.builtin) continue;
    entries[choice.variants.key] = {{"value", choice.best},
                                    {"builtin", choice.variants.builtin},
                                    {"us", choice.us_of(choice.best)},
                                    {"builtin_us", choice.us_of(choice.variants.builtin)}};
  }
  devices[device] = std::move(entries);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const std::string text = json.dump(2) + "\n", part = path + ".part";
  write_file(part, std::as_bytes(std::span(text)));
  std::filesystem::rename(part, path, error);
  if (error) fail("{}: {}", path, error.message());
}

}  // namespace sluice::cli
