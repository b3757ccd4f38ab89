// sluice cache list and clear: what servers have left in a folder of cached prompts (serve --cache-disk).
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/gguf.h"
#include "store/page_folder.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using store::FolderModel;
using store::PageFolder;

constexpr size_t kShortId = 12;  ///< digits of a model's key that tables show

std::string time_text(int64_t ns) {
  if (ns == 0) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(ns / 1'000'000'000)));
}

void list(const std::string& folder, bool json) {
  const std::vector<FolderModel> models = PageFolder::list(folder);
  if (json) {
    Json out = Json::array();
    for (const FolderModel& model : models)
      out.push_back({{"id", model.root.hex()},
                     {"model", model.name},
                     {"pages", model.pages},
                     {"bytes", model.bytes},
                     {"used", model.used_ns / 1'000'000'000}});
    print_text(out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return;
  }
  if (models.empty()) return print("{}: nothing is cached\n", folder);
  print("{:<{}}  {:>8}  {:>9}  {:<16}  {}\n", "id", kShortId, "tokens", "size", "last used", "model");
  for (const FolderModel& model : models)
    print("{}  {:>8}  {:>9}  {:<16}  {}\n", model.root.hex().substr(0, kShortId), model.pages * 64,
          short_count(static_cast<double>(model.bytes), "B"), time_text(model.used_ns),
          gguf::printable(model.name));
}

void clear(const std::string& folder, const std::string& id) {
  std::vector<FolderModel> found;
  for (const FolderModel& model : PageFolder::list(folder))
    if (model.root.hex().starts_with(id)) found.push_back(model);
  if (id.empty()) {
    PageFolder::clear(folder, nullptr);
    if (found.empty()) note("sluice: {}: nothing was cached\n", folder);
    return;
  }
  if (found.size() != 1)
    fail("{}: {} models have an id that begins with {}, expected one (sluice cache list tells)", folder,
         found.size(), id);
  PageFolder::clear(folder, &found.front().root);
}

struct CacheOptions {
  std::string folder, id;
  bool json = false;
};

}  // namespace

void add_cache(CLI::App& app) {
  auto options = std::make_shared<CacheOptions>();
  CLI::App* command =
      app.add_subcommand("cache", "Look at and clear a folder of cached prompts (serve --cache-disk)");
  command->require_subcommand(1);
  CLI::App* list_command = command->add_subcommand("list", "What is there, by model");
  list_command->add_option("DIR", options->folder, "the folder")->required();
  list_command->add_flag("--json", options->json, "as JSON");
  list_command->callback([options] { list(options->folder, options->json); });
  CLI::App* clear_command = command->add_subcommand("clear", "Remove it; a server that uses it goes on");
  clear_command->add_option("DIR", options->folder, "the folder")->required();
  clear_command->add_option("--id", options->id, "of this model alone, as list shows it, or its beginning");
  clear_command->callback([options] { clear(options->folder, options->id); });
}

}  // namespace sluice::cli
