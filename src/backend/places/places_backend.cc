#include "backend/places/places_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "backend/places/exchange.h"
#include "base/check.h"
#include "base/error.h"
#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

/// A program cut into places, and what each of them runs. Tensors of places have no bytes of their own: they
/// are views.
struct Sides {
  Program whole;
  std::vector<Program> places;
  WeightBytes weights;

  Sides(Program cut, const WeightBytes& bytes, size_t count) : whole(std::move(cut)), weights(bytes) {
    weights.resize(whole.tensors().size());
    for (size_t p = 0; p < count; ++p) places.push_back(program_at(whole, static_cast<int32_t>(p)));
  }
};

/// What each backend has loaded.
class PlacesWeights : public WeightSet {
 public:
  std::map<const Backend*, std::shared_ptr<const WeightSet>> sets;

  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& [backend, set] : sets) bytes += set->bytes();
    return bytes;
  }
};

/// By whom the ops of a program that was cut are run: places have bindings of their own.
std::vector<BoundKernel> kernels_of(const Program& program) {
  std::vector<BoundKernel> list;
  for (const Op& op : program.ops()) {
    list.push_back(info(op).across_places
                       ? BoundKernel{"exchange", "src/backend/places/exchange.cc", 1}
                       : BoundKernel{fmt::format("place {}", op.place), __FILE__, __LINE__});
  }
  return list;
}

/// Copies what every place keeps, one behind the other. Each place's copies have the same numbers: it makes
/// one for each of these.
class PlacesCopier : public PageCopier {
 public:
  explicit PlacesCopier(const places::Executables& executables) {
    for (const auto& executable : executables) {
      if (executable == nullptr) continue;
      PageCopier* const copier = executable->copier();
      CHECK(copier != nullptr, "a place that copies no pages");
      places_.push_back(copier);
    }
  }
  int64_t bytes(Kept what) const override {
    int64_t bytes = 0;
    for (const PageCopier* place : places_) bytes += place->bytes(what);
    return bytes;
  }
  std::string format() const override {
    std::string text;
    for (const PageCopier* place : places_) text += (text.empty() ? "" : " + ") + place->format();
    return text;
  }
  std::shared_ptr<std::byte[]> memory(int64_t bytes) const override { return places_.front()->memory(bytes); }
  CopyTicket begin_read(Kept what, int32_t index, std::byte* to) override {
    CopyTicket last{};
    for (PageCopier* place : places_) last = place->begin_read(what, index, to), to += place->bytes(what);
    return last;
  }
  CopyTicket begin_write(Kept what, int32_t index, const std::byte* from) override {
    CopyTicket last{};
    for (PageCopier* place : places_)
      last = place->begin_write(what, index, from), from += place->bytes(what);
    return last;
  }
  bool ended(CopyTicket copy) override {
    return std::ranges::all_of(places_, [copy](PageCopier* place) { return place->ended(copy); });
  }
  void wait(CopyTicket copy) override {
    for (PageCopier* place : places_) place->wait(copy);
  }

 private:
  std::vector<PageCopier*> places_;
};

/// Runs the places in turn, each up to where it has to wait for others. All is done in submit().
class PlacesExecutable : public Executable {
 public:
  PlacesExecutable(Sides sides, places::Executables executables, const CompileOptions& options)
      : program_(std::move(sides.whole)),
        executables_(std::move(executables)),
        copier_(executables_),
        exchange_(program_, options),
        next_part_(executables_.size()) {
    for (const Op& op : program_.ops()) {
      if (!info(op).across_places) continue;
      Meeting meeting{&op, {}};
      info(op).operands(op, [&](const char*, TensorId id, bool) {
        meeting.places.insert(static_cast<size_t>(program_[id].place));
      });
      meetings_.push_back(std::move(meeting));
    }
    logits_.resize(static_cast<size_t>(options.max_outputs * program_[program_.output()].columns()));
    outputs_.reserve(static_cast<size_t>(options.max_outputs));
  }

  Ticket submit(const Step& step) override {
    result_ = {};
    const Step rows{.input = step.input};
    std::ranges::fill(next_part_, 0);
    for (const Meeting& meeting : meetings_) {
      if (step.stop != nullptr && step.stop->load(std::memory_order_relaxed)) {
        result_.stopped = true;
        return {};
      }
      for (const size_t place : meeting.places) run_next(place, rows);
      exchange_.run(*meeting.op, step.input, executables_);
    }
    for (size_t place = 0; place < executables_.size(); ++place) {
      if (executables_[place] != nullptr) run_next(place, rows);
    }
    fetch_logits(step.input.outputs());
    return {};
  }
  StepResult collect(Ticket) override { return result_; }

  void peek(TensorId id, int64_t rows, std::span<float> values) override { at(id).peek(id, rows, values); }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    at(id).poke(id, rows, values);
  }
  PageCopier* copier() override { return &copier_; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return kernels_of(program_); }
  int64_t memory_bytes() const override {
    int64_t bytes = exchange_.bytes() + static_cast<int64_t>(logits_.size() * sizeof(float));
    for (const auto& executable : executables_)
      bytes += executable != nullptr ? executable->memory_bytes() : 0;
    return bytes;
  }

 private:
  /// An op across places, and the places that wait for each other there.
  struct Meeting {
    const Op* op;
    std::set<size_t> places;
  };

  Executable& at(TensorId id) { return *executables_[static_cast<size_t>(program_[id].place)]; }
  void run_next(size_t place, const Step& step) { executables_[place]->run_part(step, next_part_[place]++); }
  void fetch_logits(int64_t outputs) {
    const auto vocabulary = static_cast<size_t>(program_[program_.output()].columns());
    const std::span<float> logits = std::span(logits_).first(static_cast<size_t>(outputs) * vocabulary);
    if (outputs > 0) at(program_.output()).peek(program_.output(), outputs, logits);
    outputs_.clear();
    for (size_t i = 0; i < static_cast<size_t>(outputs); ++i)
      outputs_.push_back({.logits = logits.subspan(i * vocabulary, vocabulary)});
    result_.outputs = outputs_;
  }

  Program program_;
  places::Executables executables_;
  PlacesCopier copier_;
  places::Exchange exchange_;
  std::vector<Meeting> meetings_;
  std::vector<size_t> next_part_;  // by place
  std::vector<float> logits_;
  std::vector<RowResult> outputs_;
  StepResult result_;
};

/// How a program becomes one of several places.
using Cut = std::function<Program(const Program&)>;

class PlacesBackend : public Backend {
 public:
  /// first_bytes: of the first place's memory at most, of which alone is told; nothing: of all places'.
  PlacesBackend(std::vector<Place> places, Cut cut, std::optional<int64_t> first_bytes = {})
      : places_(std::move(places)), cut_(std::move(cut)), first_bytes_(first_bytes) {
    CHECK(!places_.empty());
    for (const Place& place : places_) {
      if (std::ranges::find(backends_, place.backend.get()) == backends_.end())
        backends_.push_back(place.backend.get());
      if (!place.backend->facts().parts)
        fail("the backend {} runs whole steps alone, so it cannot be one place of several",
             place.backend->name());
    }
  }

  std::string name() const override {
    std::vector<std::string> names;
    for (const Place& place : places_) names.push_back(place.backend->name());
    return fmt::format("{}", fmt::join(names, "+"));
  }
  /// Rows of a step read experts of their own, so drafts are worth what they are at the second place.
  Facts facts() const override {
    return {.draft_rows = places_.back().backend->facts().draft_rows,
            .prompt_rows = first_bytes_ ? places_.front().backend->facts().prompt_rows : 0};
  }
  std::string device() const override {
    std::vector<std::string> devices;
    for (const Place& place : places_)
      devices.push_back(fmt::format("{:g} on {}", place.share, place.backend->device()));
    return fmt::format("places: {}", fmt::join(devices, "; "));
  }
  bool has(const Program& program, const Op& op) const override {
    const auto has = [&](const Backend* one) { return one->has(program, op); };
    return first_bytes_ ? has(backends_.front()) : std::ranges::all_of(backends_, has);
  }
  /// Of different backends, the memory of each.
  int64_t available_bytes() const override {
    if (first_bytes_) return *first_bytes_;
    int64_t bytes = 0;
    for (const Backend* backend : backends_) bytes += backend->available_bytes();
    return bytes;
  }
  /// What places hold in common is counted for each.
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    const Sides sides = sides_of(program, {});
    MemoryNeeds all;
    const auto add = [](int64_t& sum, int64_t bytes) {
      if (__builtin_add_overflow(sum, bytes, &sum)) sum = std::numeric_limits<int64_t>::max();
    };
    for (size_t p = 0; p < (first_bytes_ ? 1 : places_.size()); ++p) {
      if (sides.places[p].ops().empty()) continue;
      const MemoryNeeds needs = places_[p].backend->memory_needs(sides.places[p], of_place(options));
      add(all.weights_bytes, needs.weights_bytes);
      add(all.cache_bytes, needs.cache_bytes);
      add(all.scratch_bytes, needs.scratch_bytes);
    }
    return all;
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    const Sides sides = sides_of(source.program, source.weights);
    Binding all{.kernels = kernels_of(sides.whole), .needs = memory_needs(source.program, options)};
    for (size_t p = 0; p < places_.size(); ++p) {
      if (sides.places[p].ops().empty()) continue;
      const Binding place = places_[p].backend->bind({sides.places[p], sides.weights}, of_place(options));
      for (PackedWeight weight : place.weights) {
        weight.layout = fmt::format("place {}: {}", p, weight.layout);
        all.weights.push_back(std::move(weight));
      }
    }
    all.program = sides.whole;
    return all;
  }
  double tolerance(const Program& program) const override {
    double most = 0;
    for (const Backend* backend : backends_) most = std::max(most, backend->tolerance(program));
    return most;
  }

  /// progress is told of one backend after the other.
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    std::vector<Sides> sides;
    for (const Source& source : sources) sides.push_back(sides_of(source.program, source.weights));
    auto weights = std::make_shared<PlacesWeights>();
    for (Backend* backend : backends_) {
      std::vector<Source> of_backend;
      for (const Sides& one : sides) {
        for (size_t p = 0; p < places_.size(); ++p) {
          if (places_[p].backend.get() == backend) of_backend.push_back({one.places[p], one.weights});
        }
      }
      weights->sets[backend] = backend->load(of_backend, progress);
    }
    return weights;
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    const auto loaded = std::dynamic_pointer_cast<const PlacesWeights>(weights);
    CHECK(loaded != nullptr, "weights of another backend");
    Sides sides = sides_of(source.program, source.weights);
    places::Executables executables;
    for (size_t p = 0; p < places_.size(); ++p) {
      std::unique_ptr<Executable> executable;
      Backend& backend = *places_[p].backend;
      if (!sides.places[p].ops().empty()) {
        executable =
            backend.compile({sides.places[p], sides.weights}, loaded->sets.at(&backend), of_place(options));
      }
      executables.push_back(std::move(executable));
    }
    return std::make_unique<PlacesExecutable>(std::move(sides), std::move(executables), options);
  }
  /// What places reach together depends on the model: of two unlike ones nothing is known.
  const Peaks& peaks() override {
    static const Peaks kUnknown;
    return first_bytes_ ? kUnknown : places_.front().backend->peaks();
  }
  double measure_read_bandwidth() override {
    return first_bytes_ ? 0 : places_.front().backend->measure_read_bandwidth();
  }

 private:
  /// Steps run part by part, so none pauses.
  static CompileOptions of_place(CompileOptions options) {
    options.aside_rows = 0;
    return options;
  }

  Sides sides_of(const Program& program, const WeightBytes& weights) const {
    return {cut_(program), weights, places_.size()};
  }

  std::vector<Place> places_;
  Cut cut_;
  std::optional<int64_t> first_bytes_;
  std::vector<Backend*> backends_;  // each once
};

}  // namespace

std::unique_ptr<Backend> make_places_backend(std::vector<Place> places) {
  std::vector<double> shares;
  for (const Place& place : places) shares.push_back(place.share);
  return std::make_unique<PlacesBackend>(std::move(places),
                                         [shares](const Program& program) { return split(program, shares); });
}

std::unique_ptr<Backend> make_offload_backend(std::shared_ptr<Backend> first, std::shared_ptr<Backend> second,
                                              size_t mixtures, int64_t bytes) {
  return std::make_unique<PlacesBackend>(
      std::vector<Place>{{std::move(first)}, {std::move(second)}},
      [mixtures](const Program& program) { return offload_experts(program, mixtures); }, bytes);
}

}  // namespace sluice::backend
