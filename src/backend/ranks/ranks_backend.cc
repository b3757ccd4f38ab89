#include "backend/ranks/ranks_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/ranks/kept.h"
#include "backend/ranks/messages.h"
#include "backend/ranks/side.h"
#include "base/check.h"
#include "base/error.h"
#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

/// What ranks compile: steps run part by part, so none pauses.
CompileOptions options_of_ranks(CompileOptions options) {
  options.aside_rows = 0;
  options.caches_of = nullptr;
  return options;
}

double sum_of(const MemoryNeeds& needs) {
  return static_cast<double>(needs.weights_bytes) + static_cast<double>(needs.cache_bytes) +
         static_cast<double>(needs.scratch_bytes);
}

/// By whom the ops of a program that was cut are run.
std::vector<BoundKernel> kernels_of(const Program& program, const char* carrier) {
  std::vector<BoundKernel> list;
  for (const Op& op : program.ops()) {
    list.push_back(
        info(op).across_places
            ? BoundKernel{fmt::format("between ranks by {}", carrier), "src/backend/ranks/side.cc", 1}
            : BoundKernel{fmt::format("rank {}", op.place), __FILE__, __LINE__});
  }
  return list;
}

/// Rank 0's side of a step; it has the others begin theirs.
class RanksExecutable : public Executable {
 public:
  RanksExecutable(const Program& cut, std::unique_ptr<Executable> inner, const CompileOptions& options,
                  std::shared_ptr<Channel> channel, Together together, int64_t number,
                  std::vector<KeptHere> others)
      : program_(cut),
        channel_(std::move(channel)),
        side_(program_, std::move(inner), options, *channel_),
        exchange_(together.exchange),
        number_(number) {
    CHECK(program_[program_.output()].place == 0, "logits at another rank");
    logits_.resize(static_cast<size_t>(options.max_outputs * program_[program_.output()].columns()));
    outputs_.reserve(static_cast<size_t>(options.max_outputs));
    others.insert(others.begin(), kept_by(side_.executable()));
    if (std::ranges::all_of(others, &KeptHere::copied))
      copier_.emplace(*channel_, number_, side_.executable()->copier(), std::move(others),
                      keeps_the_same(program_, together.deal));
  }
  ~RanksExecutable() override {
    if (!channel_->failure().empty()) return;
    try {
      channel_->send(Frame::Drop, Packet().add(number_));
    } catch (const Error&) {  // who is gone has dropped it
    }
  }

  Facts facts() const override {
    if (exchange_ == Exchange::ByHosts) return {};
    const Facts inner = side_.executable()->facts();
    return {.steps_in_flight = inner.steps_in_flight, .top = inner.top, .drawn = inner.drawn};
  }
  Ticket submit(const Step& step) override {
    result_ = {};
    packet_.clear();
    packet_.add(number_);
    add_input(packet_, step.input);
    channel_->send(Frame::Step, packet_);
    if (exchange_ == Exchange::ByDevices)
      return side_.executable()->submit({.input = step.input, .wants = step.wants});
    if (!side_.run(step.input, step.stop)) {
      result_.stopped = true;
      return {};
    }
    const auto vocabulary = static_cast<size_t>(program_[program_.output()].columns());
    const auto count = static_cast<size_t>(step.input.outputs());
    const std::span<float> logits = std::span(logits_).first(count * vocabulary);
    if (count > 0) side_.executable()->peek(program_.output(), static_cast<int64_t>(count), logits);
    outputs_.clear();
    for (size_t i = 0; i < count; ++i)
      outputs_.push_back({.logits = logits.subspan(i * vocabulary, vocabulary)});
    result_.outputs = outputs_;
    return {};
  }
  StepResult collect(Ticket ticket) override {
    if (exchange_ == Exchange::ByHosts) return result_;
    // Devices that waited for a rank that is gone were told to stop, or have failed for want of its memory.
    const auto check_ranks = [this] {
      if (const std::string why = channel_->failure(); !why.empty()) throw Error(why);
    };
    try {
      const StepResult result = side_.executable()->collect(ticket);
      check_ranks();
      return result;
    } catch (const Error&) {
      check_ranks();
      throw;
    }
  }

  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    const int32_t place = program_[id].place;
    if (place == 0) return side_.executable()->peek(id, rows, values);
    const Packet packet = Packet().add(number_).add(int64_t{id}).add(rows);
    channel_->send_to(place, Frame::Peek, packet.data());
    const Received received = channel_->receive_from(place);
    std::vector<float> list;
    PacketReader(received.data).list(list);
    if (list.size() != values.size())
      fail("{} sent {} numbers for {}", channel_->name(place), list.size(), values.size());
    std::ranges::copy(list, values.begin());
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    const int32_t place = program_[id].place;
    if (place == 0) return side_.executable()->poke(id, rows, values);
    const Packet packet = Packet().add(number_).add(int64_t{id}).add(rows).add_list(values);
    channel_->send_to(place, Frame::Poke, packet.data());
  }
  PageCopier* copier() override { return copier_ ? &*copier_ : nullptr; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return kernels_of(program_, channel_->carrier()); }
  int64_t memory_bytes() const override {
    return side_.memory_bytes() + static_cast<int64_t>(logits_.size() * sizeof(float));
  }

 private:
  Program program_;
  std::shared_ptr<Channel> channel_;
  Side side_;
  std::optional<RanksCopier> copier_;
  Exchange exchange_;
  int64_t number_;
  Packet packet_;
  std::vector<float> logits_;
  std::vector<RowResult> outputs_;
  StepResult result_;
};

class RanksBackend : public Backend, public FittedRows {
 public:
  RanksBackend(std::shared_ptr<Backend> inner, std::shared_ptr<Channel> channel, Together together,
               std::vector<std::shared_ptr<Backend>> alike)
      : inner_(std::move(inner)),
        channel_(std::move(channel)),
        together_(together),
        alike_(std::move(alike)) {}

  std::string name() const override { return fmt::format("{} x {}", channel_->ranks(), inner_->name()); }
  Facts facts() const override {
    const Facts inner = inner_->facts();
    Facts facts{.draft_rows = inner.draft_rows,
                .prompt_rows = inner.prompt_rows,
                .deep_rows = inner.deep_rows,
                .itl_ms = inner.itl_ms};
    for (const auto& one : alike_) facts.prompt_rows = std::min(facts.prompt_rows, one->facts().prompt_rows);
    return facts;
  }
  /// Those of the rank that was fitted for fewest.
  int64_t fitted_rows() const override {
    int64_t fewest = 0;
    for (const auto& one : alike_) {
      const auto* fitted = dynamic_cast<const FittedRows*>(one.get());
      const int64_t rows = fitted != nullptr ? fitted->fitted_rows() : 0;
      if (rows > 0 && (fewest == 0 || rows < fewest)) fewest = rows;
    }
    return fewest;
  }
  std::string device() const override {
    return fmt::format("{} ranks by {}, each {}", channel_->ranks(), carrier(), inner_->device());
  }
  bool has(const Program& program, const Op& op) const override { return inner_->has(program, op); }
  /// Of the rank that has least.
  int64_t available_bytes() const override {
    if (alike_.empty()) return channel_->available_bytes();
    const auto available = [](const auto& one) { return one->available_bytes(); };
    return available(*std::ranges::min_element(alike_, {}, available));
  }
  /// Of parts the first rank's, which has the token table and the logits, too; of layers those of the rank
  /// that has least room left, less what it has beyond the one that has least. Throws Error where ranks lack
  /// what options ask for.
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    if (together_.exchange == Exchange::ByHosts) check_runs_parts(*inner_, options);
    if (together_.deal == Deal::Parts)
      return inner_->memory_needs(part_of(program, {}).mine, options_of_ranks(options));
    const Program cut = program_of_ranks(program, channel_->ranks(), together_.deal);
    MemoryNeeds most;
    for (int32_t rank = 0; rank < channel_->ranks(); ++rank) {
      const Backend& backend = alike_.empty() ? *inner_ : *alike_[static_cast<size_t>(rank)];
      MemoryNeeds needs = backend.memory_needs(program_at(cut, rank), options_of_ranks(options));
      if (!alike_.empty()) needs.weights_bytes -= backend.available_bytes() - available_bytes();
      if (rank == 0 || sum_of(needs) >= sum_of(most)) most = needs;
    }
    return most;
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    const Part part = part_of(source.program, source.weights);
    Binding inner = inner_->bind({part.mine, part.weights}, options_of_ranks(options));
    return {.program = part.cut,
            .kernels = kernels_of(part.cut, carrier()),
            .weights = std::move(inner.weights),
            .needs = inner.needs};
  }
  double tolerance(const Program& program) const override { return inner_->tolerance(program); }

  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    CHECK(sources.size() == 1, "ranks have one program");
    auto part = std::make_shared<const Part>(part_of(sources[0].program, sources[0].weights));
    channel_->send(Frame::Load, Packet().add(fingerprint(part->cut)));
    return std::make_shared<RankWeights>(std::move(part), *inner_, progress);
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source&, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& given) override {
    const auto loaded = std::dynamic_pointer_cast<const RankWeights>(weights);
    CHECK(loaded != nullptr, "weights of another backend");
    const CompileOptions options = options_of_ranks(given);
    Packet packet;
    packet.add(++last_);
    add_options(packet, options);
    channel_->send(Frame::Compile, packet);
    auto inner = loaded->compile(*inner_, options);
    std::vector<KeptHere> others;  // who tells of it is ready
    for (int other = 1; other < channel_->ranks(); ++other) {
      const Received received = channel_->receive_from(other);
      PacketReader reader(received.data);
      others.push_back(read_kept(reader));
    }
    return std::make_unique<RanksExecutable>(loaded->part().cut, std::move(inner), options, channel_,
                                             together_, last_, std::move(others));
  }
  /// What ranks reach together depends on where they are.
  const Peaks& peaks() override {
    static const Peaks kUnknown;
    return kUnknown;
  }
  double measure_read_bandwidth() override { return 0; }

 private:
  Part part_of(const Program& program, const WeightBytes& files) const {
    return {program, files, 0, channel_->ranks(), together_};
  }
  const char* carrier() const {
    return together_.exchange == Exchange::ByHosts ? channel_->carrier() : "their devices";
  }

  std::shared_ptr<Backend> inner_;
  std::shared_ptr<Channel> channel_;
  Together together_;
  std::vector<std::shared_ptr<Backend>> alike_;  ///< by rank, or empty
  int64_t last_ = 0;                             ///< executable
};

}  // namespace

std::unique_ptr<Backend> make_ranks_backend(std::shared_ptr<Backend> inner, std::shared_ptr<Channel> channel,
                                            Together together, std::vector<std::shared_ptr<Backend>> alike) {
  return std::make_unique<RanksBackend>(std::move(inner), std::move(channel), together, std::move(alike));
}

}  // namespace sluice::backend
