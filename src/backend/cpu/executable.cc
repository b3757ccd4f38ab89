// The CPU executable: the team enters once a step and walks the list, meeting where an op needs what others
// made.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "backend/cpu/barriers.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel.h"
#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/mla_values.h"
#include "backend/cpu/peaks.h"
#include "backend/cpu/rounded_values.h"
#include "backend/cpu/simd/attend.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/threads.h"
#include "program/derived.h"
#include "program/expert_slots.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {
namespace {

using namespace program;
using cpu::Kernel;

int64_t largest_scratch(const Program& program, const CompileOptions& options) {
  int64_t floats = 0;
  for (const Op& op : program.ops()) {
    floats = std::max(floats, cpu::bind(program, op)->scratch_floats(program, op, options));
  }
  return floats;
}

bool attends_latent(const Op& op) {
  return std::holds_alternative<MlaAttend>(op.args) || std::holds_alternative<MlaValues>(op.args);
}

/// Which of the program's caches hold bfloat16 in place of binary16.
std::vector<bool> bf16_caches(const Program& program, cpu::Isa isa) {
  std::vector<bool> list;
  for (const TensorId id : program.caches()) list.push_back(cpu::attends_in_bf16(program, id, isa));
  return list;
}

/// A file's path from src/ on, wherever it was compiled.
std::string source(const std::string& path) {
  const size_t at = path.rfind("/src/");
  return at == std::string::npos ? path : path.substr(at + 1);
}

/// Where the threads were not asked for, a step of less work than this runs on one worker: some milliseconds
/// alone, less than the team's meetings would cost whenever another program wants a core.
constexpr double kAloneFlops = 32e6;

/// How many neighbours a worker asks for what they have left: all of them where ops take milliseconds, a few
/// where asking all would take as long as an op.
constexpr int64_t kLongRows = 32;
constexpr int kShortReach = 3;

constexpr int64_t kNever = Step{}.pause_ns;

/// A layer's time on a GPU, several times.
constexpr int64_t kBesideSpinNs = 500'000;

/// Counted up by hand when kernels change so much that what was measured best may not be any more.
constexpr int kKernelVersion = 7;

class CpuExecutable : public Executable, public SlotFiller {
 public:
  /// packed: null for what is bound alone; it cannot run.
  CpuExecutable(Program program, const WeightBytes& weights, std::shared_ptr<const cpu::PackedWeights> packed,
                const CompileOptions& options, int threads, int64_t spin_ns, double alone_flops, cpu::Isa isa,
                bool repack, const Tuning& tuning)
      : program_(std::move(program)),
        weights_(weights),
        options_(options),
        isa_(isa),
        repack_(repack),
        team_(threads, spin_ns),
        packed_(packed != nullptr ? std::move(packed)
                                  : std::make_shared<cpu::PackedWeights>(std::span(&source_, 1), repack)),
        table_(source_, *packed_,
               {cpu::matmul_kernels(isa), options.batch_invariant ? nullptr : cpu::unpack_kernels(isa),
                cpu::tiled_products(isa), tuning},
               team_.size()),
        memory_(program_, weights_, table_, cpu::matmul_kernels(isa), options, team_.size(),
                largest_scratch(program_, options), bf16_caches(program_, isa),
                cpu::rounded_from(program_, table_, cpu::tile_kernels(isa) != nullptr),
                options.caches_of != nullptr ? &dynamic_cast<CpuExecutable&>(*options.caches_of).memory_
                                             : nullptr),
        copier_(kept_format(),
                [this](auto what, auto index, const auto& visit) { memory_.visit_kept(what, index, visit); }),
        row_flops_(total_cost(program_, {}).flops),
        alone_flops_(alone_flops) {
    for (const Op& op : program_.ops()) kernels_.push_back(cpu::bind(program_, op));
    barriers_ = barriers(memory_, options_.max_rows);
    if (options_.aside_rows > 0) {
      aside_memory_.emplace(memory_, options_.aside_rows);
      aside_barriers_ = barriers(*aside_memory_, options_.aside_rows);
    }
    parts_ = parts(program_);
    outputs_.reserve(static_cast<size_t>(options_.max_outputs));
    taken_ = std::vector<cpu::Taken>(kernels_.size() * static_cast<size_t>(team_.size()));
  }

  Facts facts() const override {
    return {.hidden = hidden_ != kNoTensor,
            .aside_rows = options_.aside_rows,
            .parts = true,
            .hidden_rows = true};
  }
  Ticket submit(const Step& step) override {
    if (step.timed) {
      times_.parts.resize(static_cast<size_t>(team_.size()) * kernels_.size());
      time_scale_.begin();
    }
    run(step);
    if (step.timed) time_scale_.end();
    return {};
  }
  StepResult collect(Ticket) override { return result_; }
  void run_part(const Step& step, size_t part) override {
    last_ran_ = &memory_;
    if (parts_[part].count() == 0) return;
    run_ops(step, memory_, static_cast<size_t>(parts_[part].first), static_cast<size_t>(parts_[part].last));
  }

  void fetch_times(StepTimes& times) override {
    times = times_;
    times.begin_ns = time_scale_.begin_ns();
    times.end_ns = time_scale_.end_ns();
    for (size_t i = 0; i < static_cast<size_t>(times.workers) * kernels_.size(); ++i) {
      StepTimes::Part& part = times.parts[i];
      part = {time_scale_.ns(part.begin_ns), time_scale_.ns(part.end_ns)};
    }
  }

  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    size_t next = 0;
    each_element(*last_ran_, id, rows, [&](auto& element) { values[next++] = static_cast<float>(element); });
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    size_t next = 0;
    each_element(memory_, id, rows, [&](auto& element) {
      element = static_cast<std::decay_t<decltype(element)>>(values[next++]);
    });
  }
  void take_rows(Executable& from, TensorId id, std::span<const RowCopy> rows) override {
    const auto* giver = dynamic_cast<const CpuExecutable*>(&from);
    if (giver == nullptr) return Executable::take_rows(from, id, rows);
    const cpu::Memory& memory = id == giver->program_.hidden_in() ? giver->memory_ : *giver->last_ran_;
    const cpu::Rows<float> out = memory.rows(id), in = memory_.rows(program_.hidden_in());
    for (const RowCopy& row : rows) std::copy_n(out(row.from), out.columns, in(row.to));
  }
  void fill(TensorId weight, int64_t slot, std::span<const std::byte> matrix) override {
    packed_->replace(cpu::weight_in_file(source_, weight), slot, matrix);
  }
  PageCopier* copier() override { return &copier_; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override {
    std::vector<BoundKernel> list;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const Kernel& kernel = *kernels_[i];
      list.push_back({kernel_text(kernel, program_.ops()[i]), source(kernel.file), kernel.line});
    }
    return list;
  }
  int64_t memory_bytes() const override {
    return memory_.bytes() + (aside_memory_ ? aside_memory_->arena_bytes() : 0);
  }

 private:
  /// Rows of a cache serve where kernels are the same: other tiers' sums differ in the last bits.
  std::string kept_format() const {
    std::string text =
        fmt::format("cpu, {}, kernels {}: {}", cpu::isa_name(isa_), kKernelVersion, cache_shapes(program_));
    for (const bool in_bf16 : bf16_caches(program_, isa_)) text += in_bf16 ? ", bf16" : "";
    return text + (options_.batch_invariant ? ", batch-invariant" : "");
  }
  std::vector<bool> barriers(const cpu::Memory& memory, int64_t rows) const {
    return cpu::barriers_before(program_, memory.plan(), rows, std::min(rows, options_.max_outputs));
  }

  /// The kernel's name and the tier; of those that read packed weights also the tiles in registers, and how
  /// large the weights are.
  std::string kernel_text(const Kernel& kernel, const Op& op) const {
    std::string text = fmt::format("{}, {}", kernel.name, cpu::isa_name(isa_));
    if (in_bf16(op)) text += ", cache in bfloat16";
    if (kernel.stretches_from != nullptr && !options_.batch_invariant)
      if (const int64_t rows = kernel.stretches_from(program_, op, isa_); rows > 0)
        text += fmt::format(", keys made once for {} rows of a prompt and more", rows);
    info(op).operands(op, [&](const char* name, TensorId id, bool written) {
      if (const int64_t from = memory_.rounded_from(id);
          written && from != std::numeric_limits<int64_t>::max())
        text += fmt::format(", {} stays bfloat16 from {} rows", name, from);
    });
    if (!kernel.panels) return text;
    text += fmt::format(": panels of {} outputs x {} rows", cpu::kPanelRows, cpu::kTileRows);
    // Tiles, where a tier has them, take fewer rows already than share the unpacking.
    const bool tiles = cpu::tile_kernels(isa_) != nullptr;
    std::set<int> tiled_from, shared_from;
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (!table_.holds(id)) return;
      const cpu::Matrix matrix = table_.matrix(id, 0, 0);
      if (tiles && matrix.unpack != nullptr) {
        tiled_from.insert(matrix.tiled_from);
      } else if (matrix.many_product != nullptr) {
        shared_from.insert(matrix.many_from);
      }
    });
    if (!shared_from.empty())
      text += fmt::format(", from {} rows a matrix up to {} share the unpacking",
                          fmt::join(shared_from, " or "), cpu::kManyRows);
    if (!tiled_from.empty())
      text += fmt::format(", from {} rows a matrix on tiles of {} x {}", fmt::join(tiled_from, " or "),
                          cpu::kPanelRows, cpu::kGroupRows);
    if (!repack_) return text + " packed as they are read";
    info(op).operands(op, [&](const char* name, TensorId id, bool) {
      if (!table_.holds(id)) return;
      const cpu::Matrix matrix = table_.matrix(id, 0, 0);
      const double numbers = static_cast<double>(matrix.matrices * matrix.rows * matrix.columns);
      text +=
          fmt::format(", {} {:.4f} B a weight, {} B ahead", name,
                      static_cast<double>(matrix.matrices * matrix.panels() * matrix.panel_bytes) / numbers,
                      matrix.prefetch.near_bytes);
      if (matrix.several_prefetch.near_bytes != matrix.prefetch.near_bytes)
        text += fmt::format(" ({} with several rows)", matrix.several_prefetch.near_bytes);
    });
    return text;
  }

  /// Whether it attends in latent space, and to rows of bfloat16.
  bool in_bf16(const Op& op) const {
    bool in_bf16 = false;
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      in_bf16 |= program_[id].kind == Kind::Cache && memory_.cache(id).format.type == quant::Type::BF16;
    });
    return attends_latent(op) && in_bf16;
  }

  template <typename F>
  void each_element(const cpu::Memory& memory, TensorId id, int64_t rows, F visit) {
    const Tensor& storage = program_[program_.storage(id)];
    CHECK(rows <= Program::rows(storage, options_.max_rows, options_.max_outputs), "{} rows", rows);
    const bool ints = program_[id].type == quant::Type::I32;
    const cpu::Rows<float> floats = memory.rows(id);
    const cpu::Rows<int32_t> integers = memory.int_rows(id);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < floats.heads; ++h) {
        for (int64_t c = 0; c < floats.columns; ++c) {
          if (ints) {
            visit(integers(r, h)[c]);
          } else {
            visit(floats(r, h)[c]);
          }
        }
      }
    }
  }

  void run(const Step& step) {
    const StepInput& input = step.input;
    const bool aside = step.turn == Turn::Aside;
    CHECK(input.rows() >= 1 && input.rows() <= (aside ? options_.aside_rows : options_.max_rows), "{} rows",
          input.rows());
    CHECK(input.outputs() <= options_.max_outputs, "{} output rows", input.outputs());
    CHECK(!input.states.empty() || !program_.has_states(), "nobody said where states lie");
    const cpu::Memory& memory = aside ? *aside_memory_ : memory_;
    last_ran_ = &memory, pauses_ = false;
    const size_t end = run_ops(step, memory, step.turn == Turn::Resumed ? paused_at_ : 0, kernels_.size());
    if (pauses_) paused_at_ = end;
    outputs_.clear();
    const bool gives = end == kernels_.size() && program_.output() != kNoTensor;
    for (int64_t i = 0; gives && i < input.outputs(); ++i) {
      const cpu::Rows<float> logits = memory.rows(program_.output());
      outputs_.push_back({.logits = {logits(i), static_cast<size_t>(logits.columns)}});
      if (hidden_ == kNoTensor) continue;
      const cpu::Rows<float> hidden = memory.rows(hidden_);
      outputs_.back().hidden = {hidden(i), static_cast<size_t>(hidden.columns)};
    }
    result_ = {outputs_, end < kernels_.size() && !pauses_, pauses_};
  }

  /// Runs the ops [first, last), or those before which the step stops or pauses: up to which one.
  size_t run_ops(const Step& step, const cpu::Memory& memory, size_t first, size_t last) {
    const StepInput& input = step.input;
    const bool alone = static_cast<double>(input.rows()) * row_flops_ < alone_flops_;
    const int workers = alone ? 1 : team_.size();
    times_.workers = workers;
    const auto parts_of = [&](int worker) {
      return step.timed ? times_.parts.data() + static_cast<size_t>(worker) * kernels_.size() : nullptr;
    };
    end_at_.store(last, std::memory_order_relaxed);
    if (alone) {
      walk(step, first, last, {memory, input, 0, 1, isa_, team_}, parts_of(0));
    } else {
      const cpu::Steals steals{workers > 1 ? taken_.data() : nullptr, ++shared_steps_,
                               input.rows() >= kLongRows ? workers : kShortReach};
      const auto work = [&](int worker) {
        walk(step, first, last, {memory, input, worker, workers, isa_, team_, steals}, parts_of(worker));
      };
      team_.run(std::ref(work));  // by reference: a step allocates nothing
    }
    return end_at_.load(std::memory_order_relaxed);
  }

  /// Whether the step is to stop, or may and is to pause, before its next op: worker 0's business.
  bool ends(const Step& step, bool may_pause) {
    const auto wanted = [](const std::atomic<bool>* flag) {
      return flag != nullptr && flag->load(std::memory_order_relaxed);
    };
    if (wanted(step.stop)) return true;
    pauses_ = may_pause && (wanted(step.pause) || (step.pause_ns != kNever && now_ns() > step.pause_ns));
    return pauses_;
  }

  /// The ops [first, last). parts: this worker's times [ops] in ticks, or null. Where no barrier stands, an
  /// op begins when its predecessor ends: one reading of the counter serves both. context.steals: of the
  /// first op, [ops][workers].
  void walk(const Step& step, size_t first, size_t last, cpu::Context context, StepTimes::Part* parts) {
    const int workers = context.workers;
    cpu::Taken* const taken = context.steals.taken;
    const std::vector<bool>& barriers = step.turn == Turn::Aside ? aside_barriers_ : barriers_;
    int64_t begin = parts != nullptr ? ticks() : 0;
    for (size_t i = first; i < last; ++i) {
      if (barriers[i]) {
        // Worker 0 decides for all, with the number of the op: who is still behind the barrier before this
        // one must not take it for a word about that one. It pauses no sooner than something has run.
        if (context.worker == 0 && ends(step, i > first)) end_at_.store(i, std::memory_order_relaxed);
        if (workers > 1) team_.barrier();
        if (end_at_.load(std::memory_order_relaxed) <= i) return;
        if (workers > 1 && parts != nullptr) begin = ticks();
      }
      if (taken != nullptr) context.steals.taken = taken + i * static_cast<size_t>(workers);
      kernels_[i]->run(program_, program_.ops()[i], context);
      if (parts == nullptr) continue;
      parts[i] = {begin, ticks()};
      begin = parts[i].end_ns;
    }
  }

  Program program_;
  WeightBytes weights_;
  Source source_{program_, weights_};
  CompileOptions options_;
  cpu::Isa isa_;
  bool repack_;
  Team team_;
  std::shared_ptr<const cpu::PackedWeights> packed_;  // maybe other executables', too
  cpu::WeightTable table_;
  cpu::Memory memory_;
  HostCopier copier_;
  std::vector<const Kernel*> kernels_;
  std::vector<bool> barriers_;  // before each op
  TensorId hidden_ = hidden_states(program_);
  std::vector<Range> parts_;  // of ops, between those across places
  std::optional<cpu::Memory> aside_memory_;
  std::vector<bool> aside_barriers_;
  const cpu::Memory* last_ran_ = &memory_;  // where the last step left its activations
  std::vector<cpu::Taken> taken_;           // [ops][workers]
  std::atomic<size_t> end_at_{0};           // the op before which the step stops or pauses
  bool pauses_ = false;                     // ... which of the two: worker 0's, then its caller's
  size_t paused_at_ = 0;                    // of the step that is paused
  uint32_t shared_steps_ = 0;
  std::vector<RowResult> outputs_;  // of the last step, which lie in the memory it ran in
  StepResult result_;
  StepTimes times_;  // of the last timed step, in ticks ...
  TickScale time_scale_;
  double row_flops_;  // of one row of a step
  double alone_flops_;
};

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : threads_(options.threads > 0 ? options.threads : usable_threads()),
        spin_ns_(options.beside_device ? kBesideSpinNs : Team::kSpinNs),
        alone_flops_(options.threads > 0 ? 0.0 : kAloneFlops),
        fused_(options.fused),
        isa_(options.isa ? *options.isa : cpu::chosen_isa()),
        repack_(options.repack),
        tuning_(options.tuning),
        pack_file_(options.packed) {}
  std::string name() const override { return "cpu"; }
  /// Keys and values of what is before a step cost as much as attention of 410 to 450 rows to it (rank times
  /// columns without rope, over all columns): beside 2,048 rows a fifth.
  Facts facts() const override {
    Facts facts{.aside_rows = 256, .deep_rows = 2048, .hidden_rows = true, .streams = true};
    facts.parts = facts.invariant_parts = true;
    return facts;
  }
  std::string device() const override {
    return fmt::format("{}, {}, {} thread{}, kernels {}", cpu_name(), cpu::isa_name(isa_), threads_,
                       threads_ == 1 ? "" : "s", kKernelVersion);
  }
  bool has(const Program& program, const Op& op) const override {
    return cpu::bind(program, op) != nullptr && (fused_ || info(op).expand == nullptr);
  }
  std::vector<Variants> variants(const Program& program, const Op& op) const override {
    std::set<quant::Type> types;
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (cpu::reads_panels(program, op, id)) types.insert(program[id].type);
    });
    std::vector<Variants> list;
    list.reserve(types.size());
    for (const quant::Type type : types) list.push_back(cpu::ahead_variants(type));
    return list;
  }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    const Program runs = legal(program);
    return cpu::memory_needs(runs, options, threads_, largest_scratch(runs, options), repack_);
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    const CpuExecutable executable(legal(source.program), source.weights, nullptr, options, threads_,
                                   spin_ns_, alone_flops_, isa_, repack_, tuning_);
    return {executable.program(), executable.bound(), cpu::held_weights(executable.program(), repack_),
            memory_needs(source.program, options)};
  }
  double tolerance(const Program& program) const override {
    double tolerance = program::tolerance(program);
    for (const Op& op : program.ops()) {
      // Operands of bfloat16 are off by 2^-9 at most, each. Attention has four, and its softmax turns a
      // score's error into so much of a weight: with scores of some units as much again.
      if (attends_latent(op) && cpu::attend_kernels(isa_).bits == 8) tolerance = std::max(tolerance, 0x1p-7);
      // Products on tiles have two.
      const Kernel* kernel = cpu::bind(program, op);
      if (cpu::tile_kernels(isa_) != nullptr && kernel != nullptr && kernel->panels)
        tolerance = std::max(tolerance, 0x1p-8);
    }
    return tolerance;
  }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    std::vector<Program> programs;
    std::vector<Source> legal_sources;
    programs.reserve(sources.size());
    for (const Source& source : sources)
      legal_sources.push_back({programs.emplace_back(legal(source.program)), source.weights});
    auto packed = std::make_shared<cpu::PackedWeights>(legal_sources, repack_, pack_file_);
    Team team(threads_);
    packed->load(team, progress);
    return packed;
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    auto packed = std::dynamic_pointer_cast<const cpu::PackedWeights>(weights);
    CHECK(packed != nullptr, "weights of another backend");
    return std::make_unique<CpuExecutable>(legal(source.program), source.weights, std::move(packed), options,
                                           threads_, spin_ns_, alone_flops_, isa_, repack_, tuning_);
  }
  bool pack(const Program& program, const WeightBytes& weights, const cpu::PackSource& source,
            const std::string& path, const Progress& progress) const {
    Team team(threads_);
    return cpu::write_pack_file(legal(program), weights, source, path, team, progress);
  }
  const Peaks& peaks() override { return cpu::machine_peaks(threads_); }
  double measure_read_bandwidth() override { return cpu::measure_read_bandwidth(threads_); }
  std::unique_ptr<BandwidthProbe> bandwidth_probe() override { return cpu::make_bandwidth_probe(threads_); }

 private:
  Program legal(const Program& program) const {
    const auto otherwise = [this](Builder& b, const Op& op) {
      return fused_ && cpu::expand_to_values(b, op);
    };
    return legalize(
        program, name(), [this](const Program& p, const Op& op) { return has(p, op); }, otherwise);
  }

  int threads_;
  int64_t spin_ns_;
  double alone_flops_;
  bool fused_;
  cpu::Isa isa_;
  bool repack_;
  Tuning tuning_;
  std::shared_ptr<const cpu::PackFile> pack_file_;
};

}  // namespace

bool write_packed(const CpuOptions& options, const Program& program, const WeightBytes& weights,
                  const cpu::PackSource& source, const std::string& path, const Progress& progress) {
  return CpuBackend(options).pack(program, weights, source, path, progress);
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace sluice::backend
