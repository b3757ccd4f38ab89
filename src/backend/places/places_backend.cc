#include "backend/places/places_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "backend/places/exchange.h"
#include "base/check.h"
#include "base/clock.h"
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

/// A step of so many rows at the beginning of a cache.
class TrialStep {
 public:
  explicit TrialStep(int64_t rows)
      : tokens_(static_cast<size_t>(rows), 0),
        places_(static_cast<size_t>(rows)),
        pages_(static_cast<size_t>((rows + kPageRows - 1) / kPageRows)) {
    for (size_t r = 0; r < places_.size(); ++r) places_[r] = static_cast<int32_t>(r);
    for (size_t p = 0; p < pages_.size(); ++p) pages_[p] = static_cast<int32_t>(p);
    // Different tokens, which select different experts.
    for (size_t r = 0; r < tokens_.size(); ++r) tokens_[r] = static_cast<int32_t>(r % kTokens);
    last_[0] = static_cast<int32_t>(rows - 1);
  }
  /// How long it takes.
  TimedRows run(Executable& executable) const {
    const int64_t begin = now_ns();
    run_step(executable, {.input = {.tokens = tokens_,
                                    .positions = places_,
                                    .sequences = sequences_,
                                    .slots = places_,
                                    .page_tables = pages_,
                                    .pages_per_sequence = static_cast<int32_t>(pages_.size()),
                                    .output_rows = last_,
                                    .states = states_}});
    return {static_cast<double>(tokens_.size()), 1e-9 * static_cast<double>(now_ns() - begin)};
  }

 private:
  static constexpr size_t kTokens = 256;  // every vocabulary has as many

  std::vector<int32_t> tokens_, places_, pages_;
  std::vector<int32_t> sequences_ = std::vector<int32_t>(tokens_.size(), 0);
  int32_t last_[1];
  StateSlots states_[1];
};

/// What runs steps of many rows by itself, over the first place's caches.
struct Streamed {
  std::unique_ptr<Executable> executable;  ///< null: nothing does
  size_t tensors = 0;                      ///< of the program before it was cut
  int64_t from_rows = 0;                   ///< 0: to be measured
};

/// Runs the places in turn, each up to where it has to wait for others. All is done in submit().
class PlacesExecutable : public Executable {
 public:
  PlacesExecutable(Sides sides, places::Executables executables, const CompileOptions& options,
                   Streamed streamed = {})
      : program_(std::move(sides.whole)),
        executables_(std::move(executables)),
        copier_(executables_),
        streamed_(std::move(streamed.executable)),
        uncut_tensors_(streamed.tensors),
        exchange_(program_, options),
        next_part_(executables_.size()) {
    const Op* before = nullptr;
    for (const Op& op : program_.ops()) {
      if (info(op).across_places) {
        if (before != nullptr && together(*before, op)) {
          meetings_.back().ops.push_back(&op);
        } else {
          add_meeting(op);
        }
      }
      before = &op;
    }
    logits_.resize(static_cast<size_t>(options.max_outputs * program_[program_.output()].columns()));
    outputs_.reserve(static_cast<size_t>(options.max_outputs));
    if (streamed_ == nullptr) return;
    // What the smaller steps are made for is all that they can run.
    const int64_t most = options.max_rows + 1;
    const int64_t room = options.cache_pages * kPageRows;
    stream_rows_ =
        streamed.from_rows > 0
            ? std::min(streamed.from_rows, most)
            : measured_stream_rows(most, options.context > 0 ? std::min(room, options.context) : room);
  }

  Facts facts() const override { return {.stream_rows = streamed_ != nullptr ? stream_rows_ : 0}; }

  Ticket submit(const Step& step) override {
    result_ = {};
    const Step rows{.input = step.input};
    was_streamed_ = streamed_ != nullptr && step.input.rows() >= stream_rows_;
    if (was_streamed_) {
      result_ = run_step(*streamed_, {.input = step.input, .stop = step.stop});
      return {};
    }
    std::ranges::fill(next_part_, 0);
    for (const Meeting& meeting : meetings_) {
      if (step.stop != nullptr && step.stop->load(std::memory_order_relaxed)) {
        result_.stopped = true;
        return {};
      }
      for (const size_t place : meeting.places) {
        run_next(place, rows);
        next_part_[place] += meeting.ops.size() - 1;  // between copies there is nothing
      }
      if (meeting.ops.size() > 1) {
        exchange_.run_copies(meeting.ops, step.input, executables_);
      } else {
        exchange_.run(*meeting.ops.front(), step.input, executables_);
      }
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
    if (streamed_ != nullptr) bytes += streamed_->memory_bytes();
    for (const auto& executable : executables_)
      bytes += executable != nullptr ? executable->memory_bytes() : 0;
    return bytes;
  }

 private:
  /// An op across places, or copies behind each other, and the places that wait for each other there.
  struct Meeting {
    std::vector<const Op*> ops;
    std::set<size_t> places;
  };

  void add_meeting(const Op& op) {
    Meeting meeting{{&op}, {}};
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      meeting.places.insert(static_cast<size_t>(program_[id].place));
    });
    meetings_.push_back(std::move(meeting));
  }
  /// Whether both are copies from one place to another.
  bool together(const Op& before, const Op& op) const {
    const auto *a = std::get_if<Copy>(&before.args), *b = std::get_if<Copy>(&op.args);
    return a != nullptr && b != nullptr && program_[a->in.id].place == program_[b->in.id].place &&
           program_[a->out.id].place == program_[b->out.id].place;
  }

  /// Where the last step left it. What is there of several places alone, a streamed step does not have.
  Executable& at(TensorId id) {
    if (was_streamed_ && static_cast<size_t>(id) < uncut_tensors_) return *streamed_;
    return *executables_[static_cast<size_t>(program_[id].place)];
  }
  /// What steps of two sizes take over places, and one of the larger size by streaming; each once before, so
  /// that the file's pages and the graphs are there.
  int64_t measured_stream_rows(int64_t most, int64_t room) {
    const int64_t many = std::min({most - 1, room, int64_t{256}}), few = many / 8;
    if (few < 1) return most;
    stream_rows_ = most;
    const TrialStep small(few), large(many);
    const auto again = [](const TrialStep& step, Executable& executable) {
      const TimedRows first = step.run(executable), second = step.run(executable);
      return TimedRows{first.rows, std::min(first.seconds, second.seconds)};
    };
    const double seconds = again(large, *streamed_).seconds;
    return break_even_rows(again(small, *this), again(large, *this), seconds, most);
  }
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
  std::unique_ptr<Executable> streamed_;  // after them, whose caches it has
  size_t uncut_tensors_ = 0;              // those that it knows by the same ids
  int64_t stream_rows_ = 0;
  bool was_streamed_ = false;  // the last step
  places::Exchange exchange_;
  std::vector<Meeting> meetings_;
  std::vector<size_t> next_part_;  // by place
  std::vector<float> logits_;
  std::vector<RowResult> outputs_;
  StepResult result_;
};

/// sum += bytes; the largest int64 where none holds it.
void add(int64_t& sum, int64_t bytes) {
  if (__builtin_add_overflow(sum, bytes, &sum)) sum = std::numeric_limits<int64_t>::max();
}

/// How a program becomes one of several places.
using Cut = std::function<Program(const Program&)>;

class PlacesBackend : public Backend {
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
    return {.draft_rows = places_.back().backend->facts().draft_rows,
            .prompt_rows = offload_ ? places_.front().backend->facts().prompt_rows : 0};
  }
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
  /// What places hold in common is counted for each.
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    if (offload_) return offload_needs(*places_.front().backend, program, *offload_, options);
    const Sides sides = sides_of(program, {});
    MemoryNeeds all;
    for (size_t p = 0; p < places_.size(); ++p) {
      if (sides.places[p].ops().empty()) continue;
      const MemoryNeeds needs =
          places_[p].backend->memory_needs(sides.places[p], options_over_places(options, false));
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
    std::vector<Sides> sides;
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
      for (const Sides& one : sides) {
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
    Sides sides = sides_of(source.program, source.weights);
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
    if (!is_streamed(options))
      return std::make_unique<PlacesExecutable>(std::move(sides), std::move(executables), over_places);
    CompileOptions whole = options_of_streamed(options);
    whole.caches_of = executables.front().get();
    Backend& first = *places_.front().backend;
    auto streamed = first.compile({stream_experts(source.program, offload_->mixtures), source.weights},
                                  loaded->sets.at(&first), whole);
    return std::make_unique<PlacesExecutable>(
        std::move(sides), std::move(executables), over_places,
        Streamed{std::move(streamed), source.program.tensors().size(), offload_->stream_rows});
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

  Sides sides_of(const Program& program, const WeightBytes& weights) const {
    return {cut_(program), weights, places_.size()};
  }

  std::vector<Place> places_;
  Cut cut_;
  std::optional<Offload> offload_;
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
