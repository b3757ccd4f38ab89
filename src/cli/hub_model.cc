#include "cli/hub_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/version.h"
#include "quant/types.h"

namespace sluice::cli {
namespace {

constexpr const char* kHubFlags = "--hf,--hf-repo,--hfr";

/// Bytes a second over the last seconds.
class Rate {
 public:
  double add(int64_t now_ns, int64_t bytes) {
    constexpr int64_t kWindowNs = 10'000'000'000;
    if (!points_.empty() && bytes < points_.back().bytes) points_.clear();  // something began anew
    points_.push_back({now_ns, bytes});
    while (points_.size() > 2 && now_ns - points_.front().ns > kWindowNs) points_.pop_front();
    const auto ns = static_cast<double>(now_ns - points_.front().ns);
    return ns > 2e8 ? static_cast<double>(bytes - points_.front().bytes) * 1e9 / ns : 0;
  }

 private:
  struct Point {
    int64_t ns, bytes;
  };
  std::deque<Point> points_;
};

/// A bar on a terminal, lines elsewhere.
class FetchingBar {
 public:
  void show(const hub::Progress& progress) {
    const bool done = progress.done_bytes == progress.total_bytes;
    const int64_t now = now_ns();
    if (terminal_) {
      bar_.show([&] { return fetching_text(progress, rate_.add(now, progress.done_bytes)); });
      if (done) bar_.clear();
    } else if (now >= next_ns_ || done) {
      next_ns_ = now + 1'000'000'000;
      const auto tenth = static_cast<int>(10 * static_cast<double>(progress.done_bytes) /
                                          static_cast<double>(std::max<int64_t>(progress.total_bytes, 1)));
      const double rate = rate_.add(now, progress.done_bytes);
      if (tenth != tenth_) note("sluice: {}: {}\n", progress.name, fetching_text(progress, rate));
      tenth_ = tenth;
    }
  }

  void line(const std::string& text) {
    bar_.clear();
    note("sluice: {}\n", terminal_safe(text));
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  ProgressLine bar_;
  int64_t next_ns_ = 0;
  int tenth_ = -1;
  Rate rate_;
};

constexpr const char* kHubHelp =
    "-hf USER/REPO[:QUANT]: a model of the hub (huggingface.co), fetched where the cache lacks it; by "
    "default "
    "Q4_K_M, or the best that fits";
constexpr const char* kFileHelp = "with -hf: this file of the repository";

/// The name of a model of the hub as models are named here. One that makes no sense is told before anything
/// is done.
std::string scheme_name(const std::string& name) {
  hub::ModelName::parse(name);
  return kHubScheme + name;
}

/// The same repository's file.
std::string file_name(const std::string& model, const std::string& file) {
  if (!model.starts_with(kHubScheme)) throw UsageError("--hf-file " + file + ": --hf USER/REPO is missing");
  const std::string name = model.substr(std::string_view(kHubScheme).size());
  return scheme_name(name.substr(0, name.find(':')) + ":" + file);
}

bool is_name_of_hub(const std::string& name) {
  try {
    hub::ModelName::parse(name);
    return !name.ends_with(".gguf");
  } catch (const UsageError&) {
    return false;
  }
}

void add_access_options(CLI::App& command) {
  command.add_option_function<std::string>(
      "--hf-token,--hft", [](const std::string& token) { ::setenv("HF_TOKEN", token.c_str(), 1); },
      "with -hf: the token of the hub, in place of HF_TOKEN");
  command.add_flag_callback(
      "--offline", [] { ::setenv("HF_HUB_OFFLINE", "1", 1); },
      "with -hf: what the cache has, and no request");
}

}  // namespace

void add_model_option(CLI::App& command, std::string& model, const std::string& help) {
  auto* option = command.add_option("-m,--model", model, help);
  add_hub_options(command, model, *option);
}

// CLI11 takes options in the order in which they are defined here: a file comes after its repository.
void add_hub_options(CLI::App& command, std::string& model, CLI::Option& path) {
  auto* hub = command.add_option_function<std::string>(
      kHubFlags, [&model](const std::string& name) { model = scheme_name(name); }, kHubHelp);
  hub->excludes(&path);
  command
      .add_option_function<std::string>(
          "--hf-file,--hff", [&model](const std::string& file) { model = file_name(model, file); }, kFileHelp)
      ->needs(hub);
  add_access_options(command);
}

void add_models_option(CLI::App& command, std::vector<std::string>& models, const std::string& help) {
  command.add_option("-m,--model", models, help)->allow_extra_args(false);
  auto* hub = command
                  .add_option_function<std::vector<std::string>>(
                      kHubFlags,
                      [&models](const std::vector<std::string>& names) {
                        for (const std::string& name : names) models.push_back(scheme_name(name));
                      },
                      std::string(kHubHelp) + "; may be given again")
                  ->allow_extra_args(false);
  command
      .add_option_function<std::string>(
          "--hf-file,--hff",
          [&models, hub](const std::string& file) {
            if (hub->count() > 1)
              throw UsageError("--hf-file: which repository's? -hf USER/REPO:FILE says it");
            if (models.empty()) models.emplace_back();
            models.back() = file_name(models.back(), file);
          },
          kFileHelp)
      ->needs(hub);
  add_access_options(command);
}

hub::Settings hub_settings() {
  hub::Settings settings = hub::Settings::from_environment();
  settings.user_agent = "sluice/" + std::string(version()).substr(0, std::string_view(version()).find(' '));
  return settings;
}

hub::Taste hub_taste() {
  const auto reads = [](std::string_view quant) {
    if (quant.starts_with("UD-")) quant.remove_prefix(3);
    bool known = false;
    for (const quant::TypeInfo& type : quant::all_types()) {
      if (!quant.starts_with(type.name)) continue;
      known = true;
      if (type.decode != nullptr) return true;
    }
    return !known && !quant.starts_with("IQ") && !quant.starts_with("TQ");
  };
  return {available_memory_bytes(), reads};
}

hub::Listener hub_listener() {
  const auto bar = std::make_shared<FetchingBar>();
  return {[bar](const hub::Progress& progress) { bar->show(progress); },
          [bar](const std::string& line) { bar->line(line); }};
}

std::string local_path(const std::string& model) {
  if (!model.starts_with(kHubScheme)) {
    if (::access(model.c_str(), F_OK) != 0 && is_name_of_hub(model))
      fail("{}: {}; -hf {} names a model of the hub", model, std::strerror(errno), model);
    return model;
  }
  const auto name =
      hub::ModelName::parse(std::string_view(model).substr(std::string_view(kHubScheme).size()));
  return hub::find_or_pull(hub_settings(), name, hub_taste(), hub_listener()).string();
}

std::string fetching_text(const hub::Progress& progress, double bytes_per_second) {
  std::string text = progress_bar_text("fetching", progress.done_bytes, progress.total_bytes);
  if (bytes_per_second <= 0) return text;
  text += "  " + short_count(bytes_per_second, "B") + "/s";
  const double left = static_cast<double>(progress.total_bytes - progress.done_bytes) / bytes_per_second;
  if (left <= 0 || left > 360'000) return text;
  const auto seconds = static_cast<int64_t>(std::lround(left));
  if (seconds >= 3600)
    return text + fmt::format(", {}:{:02}:{:02} left", seconds / 3600, seconds / 60 % 60, seconds % 60);
  return text + fmt::format(", {}:{:02} left", seconds / 60, seconds % 60);
}

}  // namespace sluice::cli
