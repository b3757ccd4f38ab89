#include "backend/vulkan/vulkan_backend.h"

#include <fmt/format.h>

#include "backend/vulkan/executable.h"
#include "backend/vulkan/expand.h"
#include "backend/vulkan/kernels.h"
#include "backend/vulkan/peaks.h"
#include "base/check.h"
#include "base/error.h"

namespace sluice::backend {
namespace {

using namespace program;

/// Raised where kernels become quicker or slower: tuned values and figures hold for a version.
constexpr int kKernels = 5;

std::string version_of(uint32_t version) {
  return fmt::format("{}.{}.{}", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
                     VK_API_VERSION_PATCH(version));
}

class VulkanBackend : public Backend {
 public:
  explicit VulkanBackend(std::shared_ptr<vulkan::Context> context) : context_(std::move(context)) {}
  std::string name() const override { return "vulkan"; }
  Facts facts() const override { return {}; }
  std::string device() const override {
    return fmt::format("{}, Vulkan {}, kernels {}", info().name, version_of(info().api_version), kKernels);
  }
  bool has(const Program& program, const Op& op) const override { return vulkan::has(program, op); }
  int64_t available_bytes() const override { return context_->device->available_bytes(); }
  MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const override {
    const Program runs = legal(program);
    const vulkan::Layout layout(runs, options, info().subgroup_size, info().dot4);
    return {bytes_of(vulkan::Weights::held(runs)), cache_bytes(runs, options.cache_room()),
            layout.arena_bytes};
  }
  Binding bind(const Source& source, const CompileOptions& options) const override {
    Binding binding{.program = legal(source.program), .needs = memory_needs(source.program, options)};
    const vulkan::Layout layout(binding.program, options, info().subgroup_size, info().dot4);
    binding.kernels = vulkan::bound_kernels(layout, {1, 1, kPageRows});
    binding.weights = vulkan::Weights::held(binding.program);
    return binding;
  }
  std::shared_ptr<const WeightSet> load(std::span<const Source> sources, const Progress& progress) override {
    std::vector<Program> programs;
    std::vector<Source> legal_sources;
    programs.reserve(sources.size());
    for (const Source& source : sources)
      legal_sources.push_back({programs.emplace_back(legal(source.program)), source.weights});
    return std::make_shared<vulkan::Weights>(context_->device, legal_sources, progress);
  }
  using Backend::compile;
  std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                      const CompileOptions& options) override {
    auto loaded = std::dynamic_pointer_cast<const vulkan::Weights>(weights);
    CHECK(loaded != nullptr && &loaded->device() == context_->device.get(), "weights of another backend");
    return vulkan::make_executable(context_, legal(source.program), source.weights, std::move(loaded),
                                   options);
  }
  /// Reading alone: what its units compute at best is not measured.
  const Peaks& peaks() override {
    if (peaks_.read_how.empty()) {
      peaks_.bytes_per_second = measure_read_bandwidth();
      peaks_.read_how = "16 bytes an invocation, four under way";
    }
    return peaks_;
  }
  double measure_read_bandwidth() override { return vulkan::measure_read_bandwidth(*context_); }

 private:
  const vulkan::DeviceInfo& info() const { return context_->device->info(); }
  Program legal(const Program& program) const {
    return legalize(
        program, name(), [](const Program& p, const Op& op) { return vulkan::has(p, op); },
        vulkan::expand_otherwise);
  }

  std::shared_ptr<vulkan::Context> context_;
  Peaks peaks_;
};

}  // namespace

std::unique_ptr<Backend> make_vulkan_backend(const VulkanOptions& options, std::string& why) {
  try {
    auto context =
        std::make_shared<vulkan::Context>(options.device, options.staged, options.dot4, options.cache_folder);
    return std::make_unique<VulkanBackend>(std::move(context));
  } catch (const Error& error) {
    why = error.what();
    return nullptr;
  }
}

std::vector<VulkanDevice> list_vulkan_devices(std::string& why) {
  std::vector<VulkanDevice> list;
  for (const vulkan::DeviceInfo& info : vulkan::list_devices(why))
    list.push_back({info.name, info.kind, info.driver, version_of(info.api_version), info.lacks,
                    info.memory_bytes, info.most_bound_bytes, info.shared_bytes, info.unified,
                    info.subgroup_size, info.features});
  return list;
}

}  // namespace sluice::backend
