// sluice pull, list and rm: models of the hub in the cache that its clients share.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/hub_model.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A name with or without the scheme that -m takes.
std::string_view bare(std::string_view name) {
  if (name.starts_with(kHubScheme)) name.remove_prefix(std::string_view(kHubScheme).size());
  return name;
}

void pull(const std::string& text) {
  const auto name = hub::ModelName::parse(bare(text));
  print_text(hub::pull(hub_settings(), name, hub_taste(), hub_listener()).string() + "\n");
}

void list(bool json) {
  const hub::Settings settings = hub_settings();
  const std::vector<hub::Cached> models = hub::Cache(settings.cache).models();
  if (json) {
    Json out = Json::array();
    for (const hub::Cached& cached : models)
      out.push_back({{"name", cached.name()},
                     {"bytes", cached.model.bytes()},
                     {"files", cached.model.files.size()},
                     {"path", cached.path.string()}});
    print_text(out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return;
  }
  size_t width = 0;
  for (const hub::Cached& cached : models) width = std::max(width, cached.name().size());
  for (const hub::Cached& cached : models) {
    print_text(terminal_safe(
        fmt::format("{:<{}}  {:>10}\n", cached.name(), width, hub::size_text(cached.model.bytes()))));
  }
  if (models.empty())
    note("sluice: no models in {}; `sluice pull USER/REPO` fetches one\n", settings.cache.string());
}

void remove(const std::vector<std::string>& names) {
  const hub::Settings settings = hub_settings();
  const hub::Cache cache(settings.cache);
  for (const std::string& text : names) {
    const auto name = hub::ModelName::parse(bare(text));
    int64_t freed = 0;
    if (name.quant.empty()) {
      freed = cache.remove(name.repository);
    } else {
      freed = cache.remove(cache.get(name, {}));
    }
    note("sluice: {}: removed, {} are free again\n", name.text(), hub::size_text(freed));
  }
}

}  // namespace

void add_pull(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("pull", "Fetch a model of the hub (huggingface.co), or its newest state");
  command->add_option("MODEL", *name, "USER/REPO[:QUANT]; by default Q4_K_M, or the best that fits")
      ->required();
  command->footer(
      "A download that ends early goes on with the same command. The path of the file is printed. Variables: "
      "HF_HOME,\n"
      "HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, https_proxy.");
  command->callback([name] { pull(*name); });

  auto json = std::make_shared<bool>(false);
  command = app.add_subcommand("list", "Show the models that the cache of the hub holds");
  command->add_flag("--json", *json, "print one JSON array");
  command->callback([json] { list(*json); });

  auto names = std::make_shared<std::vector<std::string>>();
  command = app.add_subcommand("rm", "Remove models from the cache of the hub");
  command->add_option("MODELS", *names, "USER/REPO:QUANT; without QUANT all of the repository")->required();
  command->callback([names] { remove(*names); });
}

}  // namespace sluice::cli
