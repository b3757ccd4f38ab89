// What is bound without loading anything is what is compiled: program, kernels, weights and memory.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "model/model.h"
#include "support/golden.h"

namespace sluice::backend {
namespace {

using namespace program;

constexpr CompileOptions kOptions{.max_rows = 64, .max_outputs = 2, .cache_pages = 4};

class BindingOf : public testing::Test {
 protected:
  void check(Backend& backend) {
    const Source source{model_.program, model_.weights};
    const Binding binding = backend.bind(source, kOptions);
    const auto weights = backend.load({&source, 1}, {});
    const auto executable = backend.compile(source, weights, kOptions);
    EXPECT_EQ(dump(binding.program), dump(executable->program()));
    const std::vector<BoundKernel> kernels = executable->bound();
    ASSERT_EQ(binding.kernels.size(), kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(binding.kernels[i].name, kernels[i].name);
    const MemoryNeeds needs = backend.memory_needs(model_.program, kOptions);
    EXPECT_EQ(binding.needs.weights_bytes, needs.weights_bytes);
    EXPECT_EQ(binding.needs.cache_bytes, needs.cache_bytes);
    EXPECT_EQ(binding.needs.scratch_bytes, needs.scratch_bytes);
    EXPECT_EQ(bytes_of(binding.weights), needs.weights_bytes);
    std::set<TensorId> seen;
    for (const PackedWeight& weight : binding.weights) {
      EXPECT_EQ(binding.program[weight.tensor].kind, Kind::Weight);
      EXPECT_FALSE(weight.layout.empty());
      EXPECT_TRUE(seen.insert(weight.tensor).second) << binding.program[weight.tensor].name << " twice";
    }
  }

  model::Model model_ = model::Model::load(test::source_path("models/fairy-tales.gguf"));
};

TEST_F(BindingOf, Cpu) { check(*make_cpu_backend({.threads = 2})); }
TEST_F(BindingOf, CpuWithWeightsInTheFile) { check(*make_cpu_backend({.threads = 2, .repack = false})); }
TEST_F(BindingOf, CpuByExpansions) { check(*make_cpu_backend({.threads = 1, .fused = false})); }
TEST_F(BindingOf, Reference) { check(*make_ref_backend()); }

}  // namespace
}  // namespace sluice::backend
