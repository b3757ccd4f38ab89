// sluice opbench: every op by itself at the models' real shapes, with its weights in no cache and in all.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/checked_options.h"
#include "cli/commands.h"
#include "cli/hardware.h"
#include "cli/number_list.h"
#include "cli/op_shapes.h"
#include "cli/output.h"
#include "cli/version.h"
#include "gguf/synth.h"
#include "profile/op_bench.h"
#include "program/op_info.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct OpBenchOptions {
  std::string op, file, type, weight, backend = "cpu", rows = "1", rotate = "1.1GB", format = "md";
  std::vector<std::string> models, mixes;
  int64_t depth = 1024;
  int threads = 0;
  double seconds = 0.15;
  bool cold = false, warm = false, list = false;
};

/// A shape at a number of rows, measured.
struct Result {
  const OpShape& shape;
  int64_t rows;
  std::optional<profile::OpTiming> cold, warm;

  const profile::OpTiming& any() const { return cold ? *cold : *warm; }
};

bool wanted(const OpBenchOptions& options, const OpShape& shape) {
  return (options.op.empty() || shape.op == options.op) &&
         (options.weight.empty() || shape.weight == options.weight) &&
         (options.type.empty() || (shape.shape + " ").find(" " + options.type + " ") != std::string::npos);
}

/// Whether cold means anything: the op streams weights or cache, and not only a row of them.
bool streams(const OpShape& shape, int64_t rows, int64_t depth) {
  const program::Cost cost = program::info(*shape.record)
                                 .cost(*shape.program, *shape.record,
                                       {.rows = static_cast<double>(rows),
                                        .outputs = static_cast<double>(rows),
                                        .context = static_cast<double>(depth),
                                        .cache_rows = static_cast<double>(depth)});
  bool reads_cache = false, has_weights = false;
  program::info(*shape.record).operands(*shape.record, [&](const char*, program::TensorId id, bool written) {
    const program::Kind kind = (*shape.program)[id].kind;
    reads_cache |= kind == program::Kind::Cache && !written;
    has_weights |= kind == program::Kind::Weight && shape.op != "embed";
  });
  return (reads_cache ||
          (has_weights && profile::weight_bytes(*shape.program, *shape.record) >= profile::kColdBytes)) &&
         cost.bytes_read >= profile::kColdBytes;
}

double rate(double amount, double us) { return us > 0 ? 1e6 * amount / us : 0; }

std::string share(const profile::OpTiming& timing) {
  return timing.limit_us > 0 ? fmt::format("{:.0f} %", 100 * timing.limit_us / timing.us) : "-";
}

/// Columns of fixed width, so that rows stand below each other as they come.
class Table {
 public:
  Table(const OpBenchOptions& options, const std::vector<const OpShape*>& shapes) : options_(options) {
    for (const OpShape* shape : shapes) {
      name_ = std::max(name_, name_of(*shape).size());
      shape_ = std::max(shape_, shape->shape.size());
    }
    const auto timing = [](const char* what) {
      return fmt::format(" {:>9} | {:>6} | {:>7} |", std::string(what) + " us", "GB/s", "of peak");
    };
    const std::string line = fmt::format(" {:->8}: | {:->5}: | {:->6}: |", "", "", "");
    print_text(fmt::format("| {:<{}} | {:<{}} | {:>5} |{}{} {:>8} |\n", "op", name_, "shape", shape_, "rows",
                           options.cold ? timing("cold") : "", options.warm ? timing("warm") : "",
                           "GFLOP/s"));
    print_text(fmt::format("| {:-<{}} | {:-<{}} | {:->4}: |{}{} {:->7}: |\n", "", name_, "", shape_, "",
                           options.cold ? line : "", options.warm ? line : "", ""));
  }

  void add(const Result& result) const {
    const auto timing = [](const std::optional<profile::OpTiming>& t) {
      if (!t) return fmt::format(" {:>9} | {:>6} | {:>7} |", "-", "-", "-");
      return fmt::format(" {:>9.2f} | {:>6.1f} | {:>7} |", t->us, 1e-9 * rate(t->cost.bytes_read, t->us),
                         share(*t));
    };
    print_text(fmt::format("| {:<{}} | {:<{}} | {:>5} |{}{} {:>8.1f} |\n", name_of(result.shape), name_,
                           result.shape.shape, shape_, result.rows, options_.cold ? timing(result.cold) : "",
                           options_.warm ? timing(result.warm) : "",
                           1e-9 * rate(result.any().cost.flops, result.any().us)));
  }

 private:
  static std::string name_of(const OpShape& shape) {
    return shape.weight.empty() ? shape.op : shape.op + " " + shape.weight;
  }

  const OpBenchOptions& options_;
  size_t name_ = 2, shape_ = 5;
};

Json json_of(const profile::OpTiming& t) {
  return {{"us", t.us},
          {"min_us", t.min_us},
          {"bytes_per_second", rate(t.cost.bytes_read, t.us)},
          {"flops_per_second", rate(t.cost.flops, t.us)},
          {"share_of_peak", t.limit_us / t.us},
          {"rotated_bytes", t.resident_bytes},
          {"rounds", t.rounds}};
}

Json json_of(const Result& result, int64_t depth) {
  const profile::OpTiming& any = result.any();
  Json json = {{"op", result.shape.op},
               {"weight", result.shape.weight},
               {"shape", result.shape.shape},
               {"models", result.shape.models},
               {"calls", result.shape.calls},
               {"rows", result.rows},
               {"context", std::max(depth, result.rows)},
               {"bytes_read", any.cost.bytes_read},
               {"flops", any.cost.flops},
               {"kernel", any.kernel.name},
               {"file", any.kernel.file},
               {"line", any.kernel.line}};
  if (result.cold) json["cold"] = json_of(*result.cold);
  if (result.warm) json["warm"] = json_of(*result.warm);
  return json;
}

void collect(const OpBenchOptions& options, OpShapes& shapes) {
  if (!options.file.empty()) return shapes.add_file(options.file);
  for (const gguf::SynthModel& model : gguf::synth_models()) {
    if (!options.models.empty() && std::ranges::count(options.models, model.name) == 0) continue;
    for (const std::string& mix : options.mixes.empty() ? names_of(gguf::synth_mixes()) : options.mixes)
      shapes.add_synth(model.name, mix);
  }
}

/// What a cold run takes at most: the rotation, and the weights that it is made from.
void check_memory(double rotate_bytes, const std::vector<const OpShape*>& shapes) {
  double largest = 0;
  for (const OpShape* shape : shapes)
    largest = std::max(largest, profile::weight_bytes(*shape->program, *shape->record));
  const double needed = rotate_bytes + 2 * largest;
  const int64_t available = available_memory_bytes();
  if (needed > static_cast<double>(available)) {
    fail(
        "cold runs rotate over {:.1f} GB and need {:.1f} GB of memory, {:.1f} GB are available: --warm, or a "
        "smaller --rotate",
        1e-9 * rotate_bytes, 1e-9 * needed, 1e-9 * static_cast<double>(available));
  }
}

Result measure(const OpBenchOptions& options, program::Backend& backend, OpShapes& shapes,
               const OpShape& shape, int64_t rows, double rotate_bytes) {
  Result result{shape, rows, {}, {}};
  const auto run = [&](double rotate) {
    profile::OpBench bench(
        backend, *shape.program, *shape.record, shapes.weights(shape),
        {.rows = rows, .context = options.depth, .rotate_bytes = rotate, .seconds = options.seconds});
    return bench.measure();
  };
  if (options.cold && streams(shape, rows, options.depth)) result.cold = run(rotate_bytes);
  if (options.warm) result.warm = run(0);
  return result;
}

void opbench(OpBenchOptions options) {
  if (!options.cold && !options.warm) options.cold = options.warm = true;
  const auto rows_list = number_list("--rows", options.rows, 1);
  const double rotate_bytes = parse_rate("--rotate", options.rotate);
  const auto backend = make_backend(options.backend, options.threads);
  OpShapes shapes(*backend, *std::ranges::min_element(rows_list));
  collect(options, shapes);
  std::vector<const OpShape*> chosen;
  for (const OpShape& shape : shapes.list()) {
    if (wanted(options, shape)) chosen.push_back(&shape);
  }
  if (chosen.empty()) fail("no op of these models is so; sluice opbench --list shows all");
  if (options.list) {
    for (const OpShape* shape : chosen) {
      print_text(fmt::format("{:<14} {:<18} {:<60} {}\n", shape->op, shape->weight, shape->shape,
                             fmt::join(shape->models, " ")));
    }
    return;
  }
  const bool json = options.format == "json";
  if (options.cold) check_memory(rotate_bytes, chosen);
  const program::Peaks& peaks = backend->peaks();
  note("sluice: {}, backend {}: {:.1f} GB/s, {:.0f} GFLOP/s{}\n", backend->device(), backend->name(),
       1e-9 * peaks.bytes_per_second, 1e-9 * peaks.flops,
       options.cold ? fmt::format("; cold: over {:.2f} GB of weights or cache", 1e-9 * rotate_bytes) : "");
  Json list = Json::array();
  std::optional<Table> table;
  if (!json) table.emplace(options, chosen);
  for (const OpShape* shape : chosen) {
    for (const int64_t rows : rows_list) {
      if (!options.warm && !streams(*shape, rows, options.depth)) continue;
      const Result result = measure(options, *backend, shapes, *shape, rows, rotate_bytes);
      if (json) {
        list.push_back(json_of(result, options.depth));
      } else {
        table->add(result);
      }
    }
  }
  if (!json) return;
  print_text(Json{{"sluice", version()},
                  {"cpu", cpu_name()},
                  {"device", backend->device()},
                  {"backend", backend->name()},
                  {"peak_bytes_per_second", peaks.bytes_per_second},
                  {"peak_flops_per_second", peaks.flops},
                  {"ops", std::move(list)}}
                 .dump(2) +
             "\n");
}

}  // namespace

void add_opbench(CLI::App& app) {
  auto options = std::make_shared<OpBenchOptions>();
  CLI::App* command = app.add_subcommand(
      "opbench", "Measure every op by itself at the models' real shapes, its weights cold and warm");
  command->footer(
      "Cold: so many copies of the weights (and for attention so many pages of the cache) take turns that\n"
      "--rotate bytes lie between two readings of one; memory for them is needed. Warm: the same weights\n"
      "again and again. A step of a large model is cold throughout. GB/s are the bytes that the op must "
      "read;\n"
      "\"of peak\" is the time that the measured bandwidth and arithmetic rate would need, as a share of "
      "the\n"
      "time taken, and may pass 100 % warm. Ops that stream nothing have no cold figure.\n"
      "Ops are those that the backend runs at the fewest of these rows: a fused op that it has no kernel "
      "for\n"
      "is there as its parts.");
  command->add_option("OP", options->op, "only this op")->check(CLI::IsMember(names_of(program::all_ops())));
  CLI::Option* file =
      command->add_option("-m,--model", options->file, "the ops of this GGUF file, with its own weights");
  command->add_option("--shapes", options->models, "only these models of sluice synth (default: all)")
      ->check(CLI::IsMember(names_of(gguf::synth_models())))
      ->delimiter(',')
      ->excludes(file);
  command
      ->add_option("--mix", options->mixes,
                   "only these mixtures of types of sluice synth (default: all), or types alone, as Q2_K")
      ->delimiter(',')
      ->excludes(file);
  command->add_option("--type", options->type, "only ops with a weight of this type, as Q4_0");
  command->add_option("--weight", options->weight, "only ops with this weight, as ffn_gate_exps");
  command->add_option("-r,--rows", options->rows, "rows of a step; lists and ranges as in sluice bench")
      ->capture_default_str();
  command->add_option("-d,--n-depth", options->depth, "cache rows that attention goes over")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--cold", options->cold, "only cold figures");
  command->add_flag("--warm", options->warm, "only warm figures");
  command->add_option("--rotate", options->rotate, "bytes that cold runs rotate over")->capture_default_str();
  command->add_option("--seconds", options->seconds, "to measure each figure for, at least")
      ->check(number_range(0.001, 60.0))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "threads; 0: all that are usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->backend, kBackendHelp)->capture_default_str();
  command->add_option("-o,--output", options->format, "md or json")
      ->check(CLI::IsMember({"md", "json"}))
      ->capture_default_str();
  command->add_flag("--list", options->list, "show the ops and measure nothing");
  command->callback([options] { opbench(*options); });
}

}  // namespace sluice::cli
