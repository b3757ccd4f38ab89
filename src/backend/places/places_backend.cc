#include "backend/places/places_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "backend/places/places_executable.h"
#include "backend/places/slot_room.h"
#include "base/check.h"
#include "base/error.h"
#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

/// What each backend has loaded.
class PlacesWeights : public WeightSet {
 public:
  std::map<const Backend*, std::shared_ptr<const WeightSet>> sets;
  /// Who fills the slots of experts: one executable at a time.
  mutable std::weak_ptr<void> slots_owner;

  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& [backend, set] : sets) bytes += set->bytes();
    return bytes;
  }
};

/// How a program becomes one of several places.
using Cut = std::function<Offloaded(const Program&)>;

class PlacesBackend : public Backend, public FittedRows {
 public:
  /// offload: of the first place's memory alone is told; nothing: of all places'.
  PlacesBackend(std::vector<Place> places, Cut cut, std::optional<Offload> offload = {})
      : places_(std::move(places)), cut_(std::move(cut)), offload_(offload) {
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
    Facts facts{.draft_rows = places_.back().backend->facts().draft_rows};
    if (offload_) {
      facts.prompt_rows =
          offload_->prompt_rows > 0 ? offload_->prompt_rows : places_.front().backend->facts().prompt_rows;
    }
    facts.invariant_parts = std::ranges::all_of(
        backends_, [](const Backend* backend) { return backend->facts().invariant_parts; });
    return facts;
  }
  int64_t fitted_rows() const override { return offload_ ? offload_->prompt_rows : 0; }
  std::string device() const override {
    std::vector<std::string> devices;
    for (const Place& place : places_)
      devices.push_back(fmt::format("{:g} on {}", place.share, place.backend->device()));
    return fmt::format("places: {}", fmt::join(devices, "; "));
  }
  bool has(const Program& program, const Op& op) const override {
    const auto has = [&](const Backend* one) { return one->has(program, op); };
    return offload_ ? has(backends_.front()) : std::ranges::all_of(backends_, has);
  }
  /// Of different backends, the memory of each.
  int64_t available_bytes() const override {
    if (offload_) return offload_->bytes;
    int64_t bytes = 0;
    for (const Backend* backend : backends_) bytes += backend->available_bytes();
    return bytes;
  }
  /// What places hold in common is counted for each. Throws Error where a place lacks what options ask for.
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    for (const Backend* backend : backends_) check_runs_parts(*backend, options);
    if (offload_) return offload_needs(*places_.front().backend, program, *offload_, options);
    const places::Sides sides = sides_of(program, {});
    MemoryNeeds all;
    for (size_t p = 0; p < places_.size(); ++p) {
      if (sides.places[p].ops().empty()) continue;
      add(all, places_[p].backend->memory_needs(sides.places[p], options_over_places(options, false)));
    }
    return all;
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    const places::Sides sides = sides_of(source.program, source.weights);
    Binding all{.kernels = places::kernels_of(sides.whole), .needs = memory_needs(source.program, options)};
    for (size_t p = 0; p < places_.size(); ++p) {
      if (sides.places[p].ops().empty()) continue;
      const Binding place = places_[p].backend->bind({sides.places[p], sides.weights},
                                                     options_over_places(options, is_streamed(options)));
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
    std::vector<places::Sides> sides;
    for (const Source& source : sources) sides.push_back(sides_of(source.program, source.weights));
    std::vector<Program> streamed;  // of which the first place knows before anything is compiled
    streamed.reserve(sources.size());
    if (is_streamed({})) {
      for (const Source& source : sources)
        streamed.push_back(stream_experts(source.program, offload_->mixtures));
    }
    auto weights = std::make_shared<PlacesWeights>();
    for (Backend* backend : backends_) {
      std::vector<Source> of_backend;
      for (const places::Sides& one : sides) {
        for (size_t p = 0; p < places_.size(); ++p) {
          if (places_[p].backend.get() == backend) of_backend.push_back({one.places[p], one.weights});
        }
      }
      for (size_t i = 0; i < streamed.size() && backend == backends_.front(); ++i)
        of_backend.push_back({streamed[i], sources[i].weights});
      weights->sets[backend] = backend->load(of_backend, progress);
    }
    return weights;
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    const auto loaded = std::dynamic_pointer_cast<const PlacesWeights>(weights);
    CHECK(loaded != nullptr, "weights of another backend");
    places::Sides sides = sides_of(source.program, source.weights);
    const CompileOptions over_places = options_over_places(options, is_streamed(options));
    places::Executables executables;
    for (size_t p = 0; p < places_.size(); ++p) {
      std::unique_ptr<Executable> executable;
      Backend& backend = *places_[p].backend;
      if (!sides.places[p].ops().empty()) {
        executable =
            backend.compile({sides.places[p], sides.weights}, loaded->sets.at(&backend), over_places);
      }
      executables.push_back(std::move(executable));
    }
    std::shared_ptr<void> slots;
    if (!sides.slotted.empty() && !options.batch_invariant && loaded->slots_owner.expired())
      loaded->slots_owner = slots = std::make_shared<int>();
    places::Streamed streamed;
    if (is_streamed(options)) {
      CompileOptions whole = options_of_streamed(options);
      whole.caches_of = executables.front().get();
      Backend& first = *places_.front().backend;
      streamed = {first.compile({stream_experts(source.program, offload_->mixtures), source.weights},
                                loaded->sets.at(&first), whole),
                  source.program.tensors().size(), offload_->stream_rows};
    }
    return places::make_executable(std::move(sides), std::move(executables), over_places, std::move(streamed),
                                   std::move(slots));
  }
  std::vector<Backend*> places() const override {
    std::vector<Backend*> list;
    for (const Place& place : places_) list.push_back(place.backend.get());
    return list;
  }
  /// What places reach together depends on the model: of two unlike ones nothing is known.
  const Peaks& peaks() override {
    static const Peaks kUnknown;
    return offload_ ? kUnknown : places_.front().backend->peaks();
  }
  double measure_read_bandwidth() override {
    return offload_ ? 0 : places_.front().backend->measure_read_bandwidth();
  }

 private:
  bool is_streamed(const CompileOptions& options) const {
    return offload_ && streams(*offload_, *places_.front().backend, options);
  }

  places::Sides sides_of(const Program& program, const WeightBytes& weights) const {
    places::Sides sides(cut_(program), weights, places_.size());
    if (weights.empty()) return sides;
    for (const SlottedExperts& slotted : sides.slotted) {
      for (const auto& [experts, slots] : slotted.matrices)
        sides.weights[static_cast<size_t>(slots)] = slot_room(sides, experts, slots);
    }
    return sides;
  }
  /// The addresses of slots: the same ones for the same experts, by which backends know what they loaded.
  std::span<const std::byte> slot_room(const places::Sides& sides, TensorId experts, TensorId slots) const {
    const Program& program = sides.whole;
    const Tensor& tensor = program[slots];
    const quant::TypeInfo& type = quant::type_info(tensor.type);
    const std::byte* const file = sides.weights[static_cast<size_t>(program.storage(experts))].data() +
                                  quant::bytes_of(type, program[experts].offset);
    std::unique_ptr<places::SlotRoom>& room = rooms_[file];
    if (room == nullptr) {
      room = std::make_unique<places::SlotRoom>(
          quant::bytes_of(type, tensor.shape[0] * tensor.shape[1] * tensor.columns()));
    }
    return room->bytes();
  }

  std::vector<Place> places_;
  Cut cut_;
  std::optional<Offload> offload_;
  std::vector<Backend*> backends_;                                               // each once
  mutable std::map<const std::byte*, std::unique_ptr<places::SlotRoom>> rooms_;  // by what the file has
};

}  // namespace

std::unique_ptr<Backend> make_places_backend(std::vector<Place> places) {
  std::vector<double> shares;
  for (const Place& place : places) shares.push_back(place.share);
  return std::make_unique<PlacesBackend>(
      std::move(places), [shares](const Program& program) { return Offloaded{split(program, shares)}; });
}

std::unique_ptr<Backend> make_offload_backend(std::shared_ptr<Backend> first, std::shared_ptr<Backend> second,
                                              const Offload& offload) {
  return std::make_unique<PlacesBackend>(
      std::vector<Place>{{std::move(first)}, {std::move(second)}},
      [offload](const Program& program) { return offloaded(program, offload); }, offload);
}

int64_t break_even_rows(TimedRows few, TimedRows many, double stream_seconds, int64_t most) {
  const double each = (many.seconds - few.seconds) / (many.rows - few.rows);
  // Something else was at work: what is known is that so many rows are sooner one way or the other.
  if (!(each > 0)) return many.seconds <= stream_seconds ? most : static_cast<int64_t>(many.rows);
  const double rows = std::ceil(few.rows + (stream_seconds - few.seconds) / each);
  if (!(rows < static_cast<double>(most))) return most;
  return std::min(most, static_cast<int64_t>(std::max(rows, few.rows)));
}

}  // namespace sluice::backend
