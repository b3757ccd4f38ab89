// sluice devices: what this machine has to run models on, and a report of how a device does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/cpu_info.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/cuda_library.h"
#include "cli/measured_steps.h"
#include "cli/output.h"
#include "cli/token_source.h"
#include "cli/version.h"
#include "cli/vulkan_device.h"
#include "engine/compare.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DevicesOptions {
  std::string model, report, backend = "vulkan";
  bool json = false;
};

Json vulkan_json(std::string& why) {
  Json list = Json::array();
  int number = 0;
  for (const VulkanView& view : vulkan_devices(why)) {
    Json device = {{"backend", fmt::format("vulkan:{}", number++)}, {"name", view.name}};
    for (const auto& [name, value] : view.facts) device[name] = value;
    device["usable"] = view.usable;
    device["features"] = view.features;
    list.push_back(std::move(device));
  }
  return list;
}

/// CUDA's devices, one after the other up to the first that is not there.
Json cuda_json(std::string& why) {
  Json list = Json::array();
  constexpr int kMost = 64;
  for (int number = 0; number < kMost; ++number) {
    const auto backend = load_cuda_backend(number, why);
    if (!backend) break;
    list.push_back({{"backend", fmt::format("cuda:{}", number)},
                    {"name", backend->device()},
                    {"free memory", short_count(static_cast<double>(backend->available_bytes()), "B")}});
  }
  return list;
}

Json all_devices() {
  std::string no_cuda, no_vulkan;
  Json devices = {
      {"sluice", version()},
      {"devices",
       Json::array({{{"backend", "cpu"},
                     {"name", cpu_name()},
                     {"threads", std::to_string(usable_threads())},
                     {"free memory", short_count(static_cast<double>(available_memory_bytes()), "B")}}})}};
  for (Json& device : cuda_json(no_cuda)) devices["devices"].push_back(std::move(device));
  const size_t before = devices["devices"].size();
  for (Json& device : vulkan_json(no_vulkan)) devices["devices"].push_back(std::move(device));
  if (before == 1) devices["no_cuda"] = no_cuda;
  if (devices["devices"].size() == before) devices["no_vulkan"] = no_vulkan;
  return devices;
}

void print_devices(const Json& all) {
  for (const Json& device : all["devices"]) {
    print("{:<10} {}\n", device["backend"].get<std::string>(),
          terminal_safe(device["name"].get<std::string>()));
    for (const auto& [name, value] : device.items()) {
      if (name == "backend" || name == "name" || name == "usable") continue;
      std::string text = value.is_string() ? value.get<std::string>() : "";
      if (value.is_array()) {
        for (const Json& one : value) text += (text.empty() ? "" : " ") + one.get<std::string>();
      }
      if (!text.empty()) print("           {}: {}\n", name, terminal_safe(text));
    }
  }
  if (all.contains("no_cuda")) print("no CUDA: {}\n", terminal_safe(all["no_cuda"].get<std::string>()));
  if (all.contains("no_vulkan")) print("no Vulkan: {}\n", terminal_safe(all["no_vulkan"].get<std::string>()));
}

/// Every op of the model against the reference, at one row and at some.
Json compared(const model::Model& model, program::Backend& tested, program::Backend& judge, int64_t rows) {
  std::vector<int32_t> tokens =
      tokens_of_text(model.file, "Once upon a time there was a king who had a daughter");
  tokens.resize(static_cast<size_t>(std::min<int64_t>(rows, static_cast<int64_t>(tokens.size()))));
  Json ops = Json::array();
  bool within = true;
  engine::compare_ops(model.program, model.weights, judge, tested, tokens,
                      [&](const engine::OpDifference& d) {
                        within &= d.within();
                        ops.push_back({{"op", d.op},
                                       {"result", d.tensor},
                                       {"kernel", d.kernel_b},
                                       {"error", d.error},
                                       {"tolerance", d.tolerance}});
                      });
  return {{"rows", tokens.size()}, {"within", within}, {"ops", std::move(ops)}};
}

/// Tokens a second: one sequence, several, a prompt.
Json measured(const model::Model& model, program::Backend& backend) {
  constexpr int64_t kContext = 512, kPrompt = 256, kSteps = 32;
  constexpr int32_t kSequences = 8;
  const auto executable = backend.compile(model.program, model.weights,
                                          {.max_rows = kPrompt,
                                           .max_outputs = kSequences,
                                           .cache_pages = MeasuredSteps::pages(kSequences, kContext)});
  MeasuredSteps steps(*executable, kPrompt, kSequences, kContext, 1);
  const auto rate = [](int64_t tokens, int64_t ns) {
    return static_cast<double>(tokens) * 1e9 / static_cast<double>(ns);
  };
  steps.prompt(0, kPrompt);  // kernels are made
  const double prompt = rate(kPrompt, steps.prompt(0, kPrompt));
  const auto decode = [&](int32_t sequences) {
    steps.fill(64, sequences);
    steps.decode_steps(64, sequences, 4);
    return rate(sequences * kSteps, steps.decode_steps(68, sequences, kSteps));
  };
  const double one = decode(1), eight = decode(kSequences);
  return {{"prompt_256", prompt}, {"one_sequence", one}, {"eight_sequences", eight}};
}

void report(const DevicesOptions& options) {
  expect_writable(options.report);
  const auto say = [](const char* what) { note("sluice: devices: {}\n", what); };
  const model::Model model = open_unpacked_model(model_path_or_bundled(options.model), quant::Type::F16);
  const auto tested = make_backend(options.backend, 0), judge = make_backend("ref", 0);
  Json all = all_devices();
  all["model"] = std::filesystem::path(model.file.path()).filename().string();
  all["backend"] = options.backend;
  all["device"] = tested->device();
  say("comparing ops with the reference");
  all["compared"] = Json::array({compared(model, *tested, *judge, 1), compared(model, *tested, *judge, 12)});
  say("measuring speeds");
  all["tokens_per_second"] = measured(model, *tested);
  const std::string text = all.dump(1) + "\n";
  write_file(options.report, std::as_bytes(std::span(text)));
  for (const Json& one : all["compared"])
    print("{} rows: {} results, {}\n", one["rows"].get<int>(), one["ops"].size(),
          one["within"].get<bool>() ? "all within tolerance" : "NOT all within tolerance");
  print("{}: written; tokens a second: one sequence {:.0f}, eight {:.0f}, a prompt {:.0f}\n", options.report,
        all["tokens_per_second"]["one_sequence"].get<double>(),
        all["tokens_per_second"]["eight_sequences"].get<double>(),
        all["tokens_per_second"]["prompt_256"].get<double>());
}

}  // namespace

void add_devices(CLI::App& app) {
  auto options = std::make_shared<DevicesOptions>();
  CLI::App* command =
      app.add_subcommand("devices", "List what models can run on, or report how a device does");
  command->add_flag("--json", options->json, "print one JSON object");
  auto* report_file = command->add_option(
      "--report", options->report,
      "write a file with the devices, every op's error against the reference, and tokens a second");
  command->add_option("--backend", options->backend, std::string("with --report: ") + kBackendHelp)
      ->needs(report_file)
      ->capture_default_str();
  command->add_option("-m,--model", options->model, "with --report: GGUF file; without it the bundled model")
      ->needs(report_file);
  command->callback([options] {
    if (!options->report.empty()) return report(*options);
    const Json all = all_devices();
    if (options->json) return print("{}\n", all.dump(2));
    print_devices(all);
  });
}

}  // namespace sluice::cli
