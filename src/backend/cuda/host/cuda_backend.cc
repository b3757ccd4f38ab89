#include "backend/cuda/host/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "backend/cuda/host/architecture.h"
#include "backend/cuda/host/batch_invariant.h"
#include "backend/cuda/host/bind.h"
#include "backend/cuda/host/collectives.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/executable.h"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/peaks.h"
#include "backend/cuda/host/sm_share.h"
#include "backend/cuda/host/weights.h"
#include "base/check.h"

namespace sluice::backend {
namespace {

using namespace program;

/// What is compiled: steps of few rows, where rows must not feel each other.
CompileOptions compiled(const CompileOptions& options) {
  return options.batch_invariant ? cuda::options_inside(options) : options;
}

class CudaBackend : public Backend {
 public:
  /// collectives: of one of several processes; null: it is alone.
  explicit CudaBackend(int device, std::shared_ptr<cuda::Collectives> collectives = {})
      : device_(device), sizes_(cuda::sizes_on(device)), collectives_(std::move(collectives)) {}
  std::string name() const override { return "cuda"; }
  Facts facts() const override {
    return {.prompt_rows = 1024,
            .itl_ms = 100,
            .parts = true,
            .hidden_rows = collectives_ == nullptr,
            .streams = true};
  }
  std::string device() const override {
    cudaDeviceProp properties = {};
    cuda::check(cudaGetDeviceProperties(&properties, device_));
    const int sms = cuda::sm_count_of(device_), all = properties.multiProcessorCount;
    return fmt::format("{}, {}{} SMs, kernels {}{}", properties.name, sms,
                       sms < all ? fmt::format(" of {}", all) : "", SLUICE_CUDA_KERNELS,
                       collectives_ ? collectives_->carrier() : "");
  }
  bool has(const Program& program, const Op& op) const override {
    const cuda::OnDevice on(device_);
    return cuda::bind(program, op, sizes_) != nullptr;
  }
  bool has_for(const Program& program, const Op& op, int64_t rows) const override {
    const cuda::OnDevice on(device_);
    return cuda::bind(program, op, sizes_.of(rows, 1)) != nullptr;
  }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& asked) const override {
    const cuda::OnDevice on(device_);
    const CompileOptions options = compiled(asked);
    const cuda::Bound bound = cuda::bind_all(program, options, sizes_, collectives_.get());
    MemoryNeeds needs =
        cuda::Memory::needs(bound.leaves, options, bound.memory.bytes(), bound.longest_expansion);
    needs.scratch_bytes += cuda::warm_bytes(bound, options);
    return needs;
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    const auto executable =
        cuda::make_executable(device_, source, nullptr, compiled(options), collectives_.get());
    return {executable->program(), executable->bound(), cuda::Weights::held(executable->program()),
            memory_needs(source.program, options)};
  }
  int64_t available_bytes() const override {
    const cuda::OnDevice on(device_);
    size_t available = 0, all = 0;
    cuda::check(cudaMemGetInfo(&available, &all));
    return static_cast<int64_t>(available);
  }
  /// Rounding to a half is off by 2^-12 at most: on tensor cores an activation, a weight, its scale and its
  /// offset.
  double tolerance(const Program& program) const override {
    const cuda::OnDevice on(device_);
    double tolerance = program::tolerance(program);
    // Of an op that has no kernel for few rows, or for many, its expansion's.
    for (const cuda::Sizes& sizes : {sizes_, sizes_.of(64, kPageRows)}) {
      const Program runs = legalize(program, name(), [&](const Program& p, const Op& op) {
        return cuda::bind(p, op, sizes) != nullptr;
      });
      for (const Op& op : runs.ops())
        tolerance = std::max(tolerance, 4 * 0x1p-12 * cuda::products_of_halves(runs, op, sizes_));
    }
    return tolerance;
  }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    const cuda::OnDevice on(device_);
    return std::make_shared<cuda::Weights>(sources, progress);
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    auto uploaded = std::dynamic_pointer_cast<const cuda::Weights>(weights);
    CHECK(uploaded != nullptr && uploaded->device() == device_, "weights of another backend");
    auto executable =
        cuda::make_executable(device_, source, std::move(uploaded), compiled(options), collectives_.get());
    if (!options.batch_invariant) return executable;
    return cuda::run_batch_invariant(std::move(executable), options);
  }
  const Peaks& peaks() override {
    const cuda::OnDevice on(device_);
    return cuda::device_peaks();
  }
  double measure_read_bandwidth() override {
    const cuda::OnDevice on(device_);
    return cuda::measure_read_bandwidth();
  }
  double measure_link_bandwidth() override {
    const cuda::OnDevice on(device_);
    return cuda::measure_link_bandwidth();
  }

 private:
  int device_;
  cuda::Sizes sizes_;
  std::shared_ptr<cuda::Collectives> collectives_;
};

/// This process's, for who finds that another one is gone.
std::weak_ptr<cuda::Collectives>& collectives_here() {
  static std::weak_ptr<cuda::Collectives> here;
  return here;
}

}  // namespace

bool sluice_make_rank_id(char* id, char* why, size_t why_size) {
  try {
    const cuda::Collectives::Id made = cuda::Collectives::make_id();
    std::copy(made.begin(), made.end(), id);
    return true;
  } catch (const std::exception& error) {
    std::snprintf(why, why_size, "%s", error.what());
    return false;
  }
}

program::Backend* sluice_make_cuda_rank(int device, int rank, int ranks, const char* id, char* why,
                                        size_t why_size) {
  try {
    const cuda::OnDevice on(device);
    cuda::Collectives::Id name;
    std::copy_n(id, name.size(), name.begin());
    auto collectives = std::make_shared<cuda::Collectives>(name, rank, ranks);
    collectives_here() = collectives;
    return new CudaBackend(device, std::move(collectives));
  } catch (const std::exception& error) {
    std::snprintf(why, why_size, "%s", error.what());
    return nullptr;
  }
}

void sluice_abort_cuda_ranks() {
  if (const auto collectives = collectives_here().lock()) collectives->abort();
}

int64_t sluice_cuda_rank_sums_ns() {
  const auto collectives = collectives_here().lock();
  return collectives ? collectives->sums_ns() : 0;
}

bool sluice_hold_to_sms(int device, int sms, char* why, size_t why_size) {
  try {
    cuda::hold_to_sms(device, sms);
    return true;
  } catch (const std::exception& error) {
    std::snprintf(why, why_size, "%s", error.what());
    return false;
  }
}

program::Backend* sluice_make_cuda_backend(int device, char* why, size_t why_size) {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess) {
    std::snprintf(why, why_size, "%s", cudaGetErrorString(result));
  } else if (devices == 0) {
    std::snprintf(why, why_size, "no CUDA device");
  } else if (device < 0 || device >= devices) {
    std::snprintf(why, why_size, "no CUDA device %d: there %s %d", device, devices == 1 ? "is" : "are",
                  devices);
  } else {
    return new CudaBackend(device);
  }
  return nullptr;
}

}  // namespace sluice::backend
