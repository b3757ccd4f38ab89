// One rank's layers shared between two devices. What goes to other ranks and comes from them stands between
// the stretches of its side (program/places.h): each is a program of one place, so its steps are whole and
// whatever a model of one process can do with two devices, a rank's layers can.
#include <algorithm>
#include <map>
#include <utility>

#include "backend/places/places_backend.h"
#include "backend/places/places_executable.h"
#include "base/check.h"
#include "base/error.h"
#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {
namespace {

using namespace program;  // the waist is this room's whole vocabulary

class SideWeights : public WeightSet {
 public:
  std::shared_ptr<const WeightSet> shared, others;  // or null
  int64_t bytes() const override {
    return (shared != nullptr ? shared->bytes() : 0) + (others != nullptr ? others->bytes() : 0);
  }
};

/// Runs a stretch a part.
class SideExecutable : public Executable {
 public:
  /// by_part: null where a part has no ops.
  SideExecutable(const Program& side, places::Executables by_part, int64_t max_outputs)
      : program_(side), by_part_(std::move(by_part)) {
    nothing_.reserve(static_cast<size_t>(max_outputs));
    for (const auto& one : by_part_) {
      if (one == nullptr) continue;
      if (copier_ == nullptr || !one->program().caches().empty()) copier_ = one->copier();
      for (const Op& op : one->program().ops()) {
        info(op).operands(op, [&](const char*, TensorId id, bool) {
          std::vector<Executable*>& users = users_[one->program().storage(id)];
          if (users.empty() || users.back() != one.get()) users.push_back(one.get());
        });
      }
    }
  }

  Facts facts() const override { return {.parts = true}; }
  Ticket submit(const Step&) override { CHECK(false, "a side of several ranks runs part by part"); }
  StepResult collect(Ticket) override { return {}; }
  void run_part(const Step& step, size_t part) override {
    if (by_part_[part] == nullptr) return;
    nothing_.assign(static_cast<size_t>(step.input.outputs()), Want{.logits = false});
    run_step(*by_part_[part], {.input = step.input, .wants = nothing_});
  }
  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    users_of(id).front()->peek(id, rows, values);
  }
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    for (Executable* const user : users_of(id)) user->poke(id, rows, values);
  }
  PageCopier* copier() override { return copier_; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return places::kernels_of(program_); }
  int64_t memory_bytes() const override {
    int64_t bytes = 0;
    for (const auto& one : by_part_) bytes += one != nullptr ? one->memory_bytes() : 0;
    return bytes;
  }

 private:
  const std::vector<Executable*>& users_of(TensorId id) const {
    const auto found = users_.find(program_.storage(id));
    CHECK(found != users_.end(), "nothing here uses {}", program_[id].name);
    return found->second;
  }

  Program program_;
  places::Executables by_part_;
  std::map<TensorId, std::vector<Executable*>> users_;  // by what ops have, in the order of parts
  PageCopier* copier_ = nullptr;                        // of the one that has caches
  std::vector<Want> nothing_;
};

class SideBackend : public Backend, public FittedRows {
 public:
  SideBackend(std::shared_ptr<Backend> first, std::shared_ptr<Backend> second, const Offload& offload)
      : first_(std::move(first)),
        shared_(make_offload_backend(first_, std::move(second), offload)),
        fitted_rows_(offload.prompt_rows) {}

  std::string name() const override { return shared_->name(); }
  Facts facts() const override {
    Facts facts = shared_->facts();
    facts.parts = true;
    return facts;
  }
  int64_t fitted_rows() const override { return fitted_rows_; }
  std::string device() const override { return shared_->device(); }
  bool has(const Program& program, const Op& op) const override { return shared_->has(program, op); }
  int64_t available_bytes() const override { return shared_->available_bytes(); }
  MemoryNeeds memory_needs(const Program& side, const CompileOptions& options) const override {
    MemoryNeeds all;
    for (const Program& one : stretches_of(side)) {
      if (!one.ops().empty()) add(all, backend_of(one).memory_needs(one, options));
    }
    return all;
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    Binding all{.program = source.program,
                .kernels = places::kernels_of(source.program),
                .needs = memory_needs(source.program, options)};
    for (const Program& one : stretches_of(source.program)) {
      if (one.ops().empty()) continue;
      const Binding part = backend_of(one).bind({one, source.weights}, options);
      all.weights.insert(all.weights.end(), part.weights.begin(), part.weights.end());
    }
    return all;
  }
  double tolerance(const Program& program) const override { return shared_->tolerance(program); }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    CHECK(sources.size() == 1, "a rank has one program");
    const std::vector<Program> all = stretches_of(sources[0].program);
    auto weights = std::make_shared<SideWeights>();
    for (const auto& [backend, set] :
         {std::pair(shared_.get(), &weights->shared), {first_.get(), &weights->others}}) {
      std::vector<Source> list;
      for (const Program& one : all) {
        if (!one.ops().empty() && &backend_of(one) == backend) list.push_back({one, sources[0].weights});
      }
      if (!list.empty()) *set = backend->load(list, progress);
    }
    return weights;
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    const auto loaded = std::dynamic_pointer_cast<const SideWeights>(weights);
    CHECK(loaded != nullptr, "weights of another backend");
    places::Executables by_part;
    for (const Program& one : stretches_of(source.program)) {
      Backend& backend = backend_of(one);
      by_part.push_back(one.ops().empty()
                            ? nullptr
                            : backend.compile({one, source.weights},
                                              &backend == first_.get() ? loaded->others : loaded->shared,
                                              options));
    }
    return std::make_unique<SideExecutable>(source.program, std::move(by_part), options.max_outputs);
  }
  const Peaks& peaks() override { return shared_->peaks(); }
  double measure_read_bandwidth() override { return 0; }

 private:
  /// Whose layers' experts are at two places: one stretch at most, since a rank's layers are.
  static std::vector<Program> stretches_of(const Program& side) {
    std::vector<Program> list = stretches(side);
    if (std::ranges::count_if(list, has_mixtures) > 1)
      fail("a rank's layers of experts are not one behind the other");
    return list;
  }
  static bool has_mixtures(const Program& program) { return !routed_experts(program).empty(); }
  Backend& backend_of(const Program& stretch) const { return has_mixtures(stretch) ? *shared_ : *first_; }

  std::shared_ptr<Backend> first_;
  std::unique_ptr<Backend> shared_;
  int64_t fitted_rows_;
};

}  // namespace

std::unique_ptr<Backend> make_offload_side_backend(std::shared_ptr<Backend> first,
                                                   std::shared_ptr<Backend> second, const Offload& offload) {
  return std::make_unique<SideBackend>(std::move(first), std::move(second), offload);
}

}  // namespace sluice::backend
