// sluice inspect: what a GGUF file holds, for people and as JSON. Shows the container as it is: it needs no
// support for the model in it, and it must not trust the strings in it (gguf::printable).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/bench_cost.h"
#include "cli/commands.h"
#include "cli/drafting.h"
#include "cli/hub_model.h"
#include "cli/loading.h"
#include "cli/memory_view.h"
#include "cli/output.h"
#include "cli/program_view.h"
#include "gguf/gguf.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

/// JSON holds arrays up to this length and size in full, longer ones as {"type", "count"}.
constexpr uint64_t kJsonElements = 64;
constexpr uint64_t kJsonArrayBytes = 4096;
/// People see the first few elements of an array.
constexpr uint64_t kShownElements = 5;
constexpr size_t kShownTextBytes = 100;

struct InspectOptions {
  std::string path;
  bool tensors = false;
  bool program = false;
  bool bound = false;
  std::string places;
  bool memory = false;
  bool json = false;
  std::string backend = "cpu";
  int64_t context = 0;
  GpuShare gpu;
  int ranks = 1;
  int threads = 0;
  quant::Type cache = quant::Type::F16;
};

/// "2": so many even shares; "3:1": shares that are in this proportion.
std::vector<double> parse_shares(const std::string& text) {
  std::vector<double> shares;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    const auto [stop, error] = std::from_chars(at, end, shares.emplace_back());
    if (error != std::errc{} || (stop != end && *stop != ':'))
      throw UsageError("--places " + text + ": expected a number of places, or their shares as 3:1");
    at = stop;
    if (at == end) break;
  }
  if (shares.size() > 1) return shares;
  const double count = shares[0];
  if (!(count >= 1 && count <= 64) || count != std::floor(count))
    throw UsageError("--places " + text + ": expected 1 to 64 places");
  return std::vector<double>(static_cast<size_t>(count), 1.0);
}

/// Count and size of the tensors of one type.
struct TypeTotal {
  int64_t tensors = 0;
  int64_t numbers = 0;
  int64_t bytes = 0;
};

std::map<quant::Type, TypeTotal> totals_by_type(const gguf::File& file) {
  std::map<quant::Type, TypeTotal> totals;
  for (const gguf::Tensor& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type];
    total.tensors += 1;
    total.numbers += tensor.count();
    total.bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  return totals;
}

TypeTotal sum(const std::map<quant::Type, TypeTotal>& totals) {
  TypeTotal all;
  for (const auto& [type, total] : totals) {
    all.tensors += total.tensors;
    all.numbers += total.numbers;
    all.bytes += total.bytes;
  }
  return all;
}

// --- for people ---

/// One value on one line; f32 in the digits that a float needs.
std::string scalar_text(gguf::ValueType type, const gguf::Scalar& scalar) {
  if (const auto* text = std::get_if<std::string_view>(&scalar))
    return gguf::printable(*text, kShownTextBytes);
  if (const auto* number = std::get_if<uint64_t>(&scalar)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<int64_t>(&scalar)) return fmt::format("{}", *number);
  if (const auto* flag = std::get_if<bool>(&scalar)) return *flag ? "true" : "false";
  const double number = std::get<double>(scalar);
  return type == gguf::ValueType::F32 ? fmt::format("{}", static_cast<float>(number))
                                      : fmt::format("{}", number);
}

std::string value_text(const gguf::Value& value) {
  const auto* array = std::get_if<gguf::Array>(&value.value);
  if (array == nullptr) return scalar_text(value.type, value.value);
  std::string text = fmt::format("{} x {}", array->count, gguf::type_name(array->type));
  const char* separator = ": ";
  for (const gguf::Scalar& element : gguf::elements(*array, kShownElements)) {
    text += separator + scalar_text(array->type, element);
    separator = ", ";
  }
  return array->count > kShownElements ? text + ", ..." : text;
}

std::string head_text(const gguf::File& file, const TypeTotal& all, bool packed) {
  const auto line = [](const char* name, const std::string& value) {
    return fmt::format("{:<14}{}\n", name, value);
  };
  const gguf::Value* architecture = file.find("general.architecture");
  return line("file", gguf::printable(file.path(), 4096)) +
         line("format", fmt::format("GGUF version {}, alignment {}", file.version(), file.alignment())) +
         line("size", fmt::format("{} ({} bytes)", short_count(static_cast<double>(file.size_bytes()), "B"),
                                  file.size_bytes())) +
         (packed ? line("packed", "by sluice pack; what follows is of the GGUF file that it was made of")
                 : "") +
         (file.parts() > 1 ? line("parts", std::to_string(file.parts())) : "") +
         line("architecture", architecture != nullptr ? value_text(*architecture) : "not given") +
         line("parameters", short_count(static_cast<double>(all.numbers), "")) +
         (model::is_prediction_alone(file)
              ? line("holds", "a block of multi-token prediction alone: useless without its model")
              : "");
}

std::string metadata_text(const gguf::File& file) {
  size_t width = 0;
  for (const gguf::Entry& entry : file.metadata()) {
    width = std::max(width, std::min<size_t>(60, gguf::printable(entry.key).size()));
  }
  std::string text = fmt::format("\nmetadata: {} keys\n", file.metadata().size());
  for (const gguf::Entry& entry : file.metadata()) {
    text += fmt::format("  {:<{}}  {:<6}  {}\n", gguf::printable(entry.key), width,
                        gguf::type_name(entry.value.type), value_text(entry.value));
  }
  return text;
}

std::string totals_text(const std::map<quant::Type, TypeTotal>& totals, const TypeTotal& all) {
  std::vector<std::pair<quant::Type, TypeTotal>> rows(totals.begin(), totals.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  const auto row = [&](const char* name, const TypeTotal& total) {
    const double share =
        all.bytes > 0 ? 100.0 * static_cast<double>(total.bytes) / static_cast<double>(all.bytes) : 0;
    return fmt::format("  {:<8}{:>8}{:>16}{:>12}{:>8.2f} %\n", name, total.tensors, total.bytes,
                       short_count(static_cast<double>(total.bytes), "B"), share);
  };
  std::string text = fmt::format("\ntensors: {}\n  {:<8}{:>8}{:>16}{:>12}{:>10}\n", all.tensors, "type",
                                 "tensors", "bytes", "", "share");
  for (const auto& [type, total] : rows) text += row(quant::type_info(type).name, total);
  return text + row("all", all);
}

std::string tensors_text(const gguf::File& file) {
  size_t width = 0;
  for (const gguf::Tensor& tensor : file.tensors())
    width = std::max(width, gguf::printable(tensor.name).size());
  std::string text = "\n";
  for (const gguf::Tensor& tensor : file.tensors()) {
    text += fmt::format("  {:<{}}  {:<8}{:<22}{:>12}\n", gguf::printable(tensor.name), width,
                        quant::type_info(tensor.type).name, gguf::shape_text(tensor), tensor.bytes.size());
  }
  return text;
}

std::string inspect_text(const gguf::File& file, bool with_tensors, bool packed) {
  const auto totals = totals_by_type(file);
  const TypeTotal all = sum(totals);
  std::string text = head_text(file, all, packed) + metadata_text(file) + totals_text(totals, all);
  if (with_tensors) text += tensors_text(file);
  return text;
}

// --- JSON ---

Json scalar_json(gguf::ValueType type, const gguf::Scalar& scalar) {
  if (const auto* text = std::get_if<std::string_view>(&scalar)) return std::string(*text);
  if (const auto* number = std::get_if<uint64_t>(&scalar)) return *number;
  if (const auto* number = std::get_if<int64_t>(&scalar)) return *number;
  if (const auto* flag = std::get_if<bool>(&scalar)) return *flag;
  const double number = std::get<double>(scalar);
  // 1e-05 and not 9.999999747378752e-06: the shortest decimal that reads back as this float.
  if (type == gguf::ValueType::F32)
    return std::strtod(fmt::format("{}", static_cast<float>(number)).c_str(), nullptr);
  return number;
}

Json value_json(const gguf::Value& value) {
  const auto* array = std::get_if<gguf::Array>(&value.value);
  if (array == nullptr) return scalar_json(value.type, value.value);
  if (array->count > kJsonElements || array->bytes.size() > kJsonArrayBytes)
    return {{"type", gguf::type_name(array->type)}, {"count", array->count}};
  Json items = Json::array();
  for (const gguf::Scalar& element : gguf::elements(*array, array->count)) {
    items.push_back(scalar_json(array->type, element));
  }
  return items;
}

std::string inspect_json(const gguf::File& file, bool packed) {
  Json root = {{"file", file.path()},           {"version", file.version()},
               {"alignment", file.alignment()}, {"size_bytes", file.size_bytes()},
               {"parts", file.parts()},         {"packed", packed}};
  Json& metadata = root["metadata"] = Json::object();
  for (const gguf::Entry& entry : file.metadata()) metadata[std::string(entry.key)] = value_json(entry.value);
  Json& types = root["types"] = Json::object();
  for (const auto& [type, total] : totals_by_type(file)) {
    types[quant::type_info(type).name] = {
        {"tensors", total.tensors}, {"numbers", total.numbers}, {"bytes", total.bytes}};
  }
  Json& tensors = root["tensors"] = Json::array();
  for (const gguf::Tensor& tensor : file.tensors()) {
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.dimensions);
    tensors.push_back({{"name", std::string(tensor.name)},
                       {"type", quant::type_info(tensor.type).name},
                       {"shape", shape},
                       {"bytes", tensor.bytes.size()}});
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void inspect_memory(const InspectOptions& options) {
  OpenedModel model = open_model(options.path, options.cache);
  if (options.ranks > 1) {
    const std::shared_ptr<program::Backend> device =
        make_backend(options.backend, options.threads, {true, model.packed});
    const std::vector<RankMemory> ranks =
        memory_of_ranks(model, device, options.ranks, options.threads, {options.gpu, options.context});
    print_text(options.json ? rank_memory_json(ranks).dump(2) + "\n" : rank_memory_text(ranks, *device));
    return;
  }
  const auto backend = make_backend(options.backend, options.threads, {true, model.packed}, model,
                                    {options.gpu, options.context});
  prepare_drafts(model, *backend, DraftOptions{}, options.cache);        // as a run would
  const text::Tokenizer vocabulary = model::load_tokenizer(model.file);  // it takes memory too
  const MemoryView view = memory_view(model, *backend, options.context);
  if (options.json) return print_text(memory_json(view).dump(2) + "\n");
  print_text(memory_text(view));
  if (const auto peaks = measured_peaks(*backend)) {
    const program::Program cut = backend->bind({model.program, model.weights}, {}).program;
    print_text(shared_text(cut, *peaks) + "\n");
  }
}

void inspect(const InspectOptions& given) {
  if (given.path.empty()) throw UsageError("inspect: FILE is required");
  InspectOptions options = given;
  options.path = local_path(options.path);
  if (options.memory) return inspect_memory(options);
  if (options.program || options.bound) {
    const OpenedModel model = open_model(options.path, options.cache);
    const auto backend =
        options.bound ? make_backend(options.backend, options.threads, {true, model.packed}) : nullptr;
    const ProgramView shown{backend.get(),
                            options.places.empty() ? std::vector<double>{} : parse_shares(options.places)};
    print_text(options.json
                   ? program_json(model, shown).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                   : program_text(model, shown));
    return;
  }
  const OpenedFile opened = open_file(options.path);
  const gguf::File& file = opened.file;
  print_text(options.json ? inspect_json(file, opened.packed != nullptr)
                          : inspect_text(file, options.tensors, opened.packed != nullptr));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a GGUF file holds: metadata and tensors");
  auto* file = command->add_option("FILE,-m,--model", options->path, "a GGUF file, or one of sluice pack");
  add_hub_options(*command, options->path, *file);
  command->add_flag("--tensors", options->tensors, "list every tensor");
  auto* program = command->add_flag("--program", options->program,
                                    "list the ops that a token runs, with bytes and FLOPs");
  auto* bound = command->add_flag(
      "--bound", options->bound,
      "the same as a backend runs it: the kernel of each op, how weights are packed, memory");
  command
      ->add_option("--places", options->places,
                   "with --program: cut into so many places (devices), or into shares as 3:1")
      ->needs(program)
      ->excludes(bound);
  auto* memory = command->add_flag("--memory", options->memory,
                                   "what the model takes of memory to run, and what there is");
  command->add_option("-c,--ctx-size", options->context, "with --memory: context in tokens; 0: what fits")
      ->check(CLI::Range(0, 1 << 30))
      ->needs(memory);
  command
      ->add_option("--pipeline-parallel", options->ranks,
                   "with --memory: what each of so many ranks would take, with layers of its own")
      ->check(CLI::Range(1, 64))
      ->needs(memory);
  command
      ->add_option("-t,--threads", options->threads,
                   "with --memory or --bound: threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024));
  command->add_option("--backend", options->backend,
                      std::string("with --memory or --bound: ") + kBackendHelp);
  add_cache_option(*command, options->cache);
  add_gpu_memory_option(*command, options->gpu);
  command->add_flag("--json", options->json, "print one JSON object (tensors included)");
  command->callback([options] { inspect(*options); });
}

}  // namespace sluice::cli
