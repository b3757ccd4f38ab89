// A backend is of one device, and what is bound without weights is what is compiled.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "model/model.h"
#include "support/cuda.h"
#include "support/golden.h"

namespace sluice::test {
namespace {

using namespace program;

TEST(CudaDevice, BindingIsWhatIsCompiled) {
  CUDA_OR_SKIP(cuda);
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  constexpr CompileOptions kOptions{.max_rows = 64, .max_outputs = 2, .cache_pages = 4};
  const Source source{model.program, model.weights};
  const Binding binding = cuda.bind(source, kOptions);  // loads the kernels' code
  int64_t taken = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 5; ++i) {  // others on the GPU may take some meanwhile, but not every time
    const int64_t before = cuda.available_bytes();
    EXPECT_EQ(cuda.bind(source, kOptions).kernels.size(), binding.kernels.size());
    taken = std::min(taken, before - cuda.available_bytes());
  }
  EXPECT_LT(taken, 8 << 20) << "what is bound takes no memory for its sizes";
  EXPECT_EQ(bytes_of(binding.weights), cuda.memory_needs(model.program, kOptions).weights_bytes);
  const auto executable = cuda.compile(model.program, model.weights, kOptions);
  EXPECT_EQ(dump(binding.program), dump(executable->program()));
  const std::vector<BoundKernel> kernels = executable->bound();
  ASSERT_EQ(binding.kernels.size(), kernels.size());
  for (size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(binding.kernels[i].name, kernels[i].name);
}

TEST(CudaDevice, ThereIsNoOther) {
  CUDA_OR_SKIP(cuda);
  EXPECT_EQ(cuda.name(), "cuda");
  std::string why;
  EXPECT_EQ(cli::load_cuda_backend(1000, why), nullptr);
  EXPECT_NE(why.find("no CUDA device 1000"), std::string::npos) << why;
}

// The engine's thread never chose a device: what it calls goes to the executable's own.
TEST(CudaDevice, AnyThreadsCallsGoToIt) {
  CUDA_OR_SKIP(first);
  std::string why;
  const auto second = cli::load_cuda_backend(1, why);
  if (second == nullptr) GTEST_SKIP() << why;
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  constexpr CompileOptions kOptions{.max_rows = 8, .max_outputs = 1, .cache_pages = 4};
  const int32_t tokens[] = {5, 6, 7}, positions[] = {0, 1, 2}, sequences[] = {0, 0, 0}, slots[] = {0, 1, 2},
                tables[] = {0}, outputs[] = {2};
  const StepInput input{tokens, positions, sequences, slots, tables, 1, outputs};
  std::vector<float> logits[2];
  Backend* const backends[] = {&first, second.get()};
  for (size_t i = 0; i < 2; ++i) {
    const auto executable = backends[i]->compile(model.program, model.weights, kOptions);
    logits[i].resize(static_cast<size_t>(model.program[model.program.output()].columns()));
    std::thread([&] { run_logits(*executable, input, logits[i]); }).join();
  }
  EXPECT_EQ(logits[0], logits[1]) << "cards of one kind give the same bits";
}

}  // namespace
}  // namespace sluice::test
