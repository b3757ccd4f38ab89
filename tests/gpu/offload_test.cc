// Models whose routed experts are computed by the CPU, everything else by the GPU, against the logits of
// their golden cases.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "base/error.h"
#include "program/offload.h"
#include "support/cuda.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

Golden golden_of(const std::string_view name) {
  for (const Case& one : kCases) {
    if (one.name == name) return read_case(one);
  }
  throw std::out_of_range(std::string(name));
}

/// Of the experts of so many mixtures.
int64_t bytes_of_last(const Golden& golden, size_t count) {
  const auto all = program::routed_experts(model::Model::load(golden.model).program);
  int64_t bytes = 0;
  for (size_t i = all.size() - count; i < all.size(); ++i) bytes += all[i].bytes;
  return bytes;
}

TEST(CudaOffload, GoldenCasesAreWithinTheLimitOfDivergence) {
  CudaForTest device;
  if (device.backend == nullptr) GTEST_SKIP() << device.why;
  const std::shared_ptr<program::Backend> cuda = std::move(device.backend),
                                          cpu = backend::make_cpu_backend({.threads = 4});
  size_t tried = 0;
  for (const Case& one : kCases) {
    if (one.name == std::string_view("mistral4")) continue;  // an op of it has no kernel
    const Golden golden = read_case(one);
    const size_t all = program::routed_experts(model::Model::load(golden.model).program).size();
    if (all == 0) continue;
    const auto backend =
        backend::make_offload_backend(cuda, cpu, {.mixtures = all, .bytes = int64_t{1} << 40});
    for (const int64_t rows : {1, 7, 512}) {
      const Divergence kl = divergence(golden, logits_of(golden, *backend, rows));
      EXPECT_LT(kl.best_90, one.kl_limit) << one.name << ", rows " << rows;
    }
    ++tried;
  }
  EXPECT_GT(tried, 5u);
}

/// What comes to the GPU while a step runs gives what lies there gives: to the bit where every step streams,
/// whether all of it comes or some experts have copies there.
TEST(CudaOffload, StreamedExpertsAreTheSameExperts) {
  CudaForTest device;
  if (device.backend == nullptr) GTEST_SKIP() << device.why;
  const std::shared_ptr<program::Backend> cuda = std::move(device.backend),
                                          cpu = backend::make_cpu_backend({.threads = 4});
  for (const char* name : {"glm-q4_k_m", "glm-q4_0", "lite-q4_k_m-yarn", "v3-groups", "qwen3moe-q4_k_m"}) {
    const Golden golden = golden_of(name);
    const size_t all = program::routed_experts(model::Model::load(golden.model).program).size();
    for (const size_t count : {size_t{1}, all}) {
      for (const int64_t rows : {1, 7, 512}) {
        const std::vector<float> whole = logits_of(golden, *cuda, rows);
        const auto streamed = [&](int64_t from, int64_t slot_bytes = 0) {
          const auto backend = backend::make_offload_backend(
              cuda, cpu,
              {.mixtures = count, .bytes = int64_t{1} << 40, .stream_rows = from, .slot_bytes = slot_bytes});
          return logits_of(golden, *backend, rows);
        };
        EXPECT_EQ(streamed(1), whole) << name << ", " << count << ", rows " << rows;
        const int64_t bytes = bytes_of_last(golden, count);
        for (const int64_t slot_bytes : {bytes * 5 / 8, bytes})
          EXPECT_EQ(streamed(1, slot_bytes), whole) << name << ", " << count << ", " << slot_bytes;
        EXPECT_LT(divergence(golden, streamed(7)).best_90, 0.002) << name << ", rows " << rows;
      }
    }
  }
}

/// Copies of some of the experts on the GPU, the CPU computes others: whatever is there.
TEST(CudaOffload, CopiesOfExpertsStayWithinTheLimits) {
  CudaForTest device;
  if (device.backend == nullptr) GTEST_SKIP() << device.why;
  const std::shared_ptr<program::Backend> cuda = std::move(device.backend),
                                          cpu = backend::make_cpu_backend({.threads = 4});
  for (const char* name : {"glm-q4_k_m", "glm-q4_0", "lite-q4_k_m-yarn", "v3-groups", "qwen3moe-q4_k_m"}) {
    const Golden golden = golden_of(name);
    const model::Model model = model::Model::load(golden.model);
    const size_t all = program::routed_experts(model.program).size();
    int64_t bytes = 0;
    for (const program::RoutedExperts& one : program::routed_experts(model.program)) bytes += one.bytes;
    for (const int64_t slot_bytes : {bytes * 5 / 8, bytes}) {
      if (program::slots_of(model.program, all, slot_bytes).empty()) continue;
      for (const int64_t from : {program::kNeverStream, int64_t{7}}) {
        const auto backend = backend::make_offload_backend(
            cuda, cpu,
            {.mixtures = all, .bytes = int64_t{1} << 40, .stream_rows = from, .slot_bytes = slot_bytes});
        for (const int64_t rows : {1, 5, 7, 512}) {
          const Divergence kl = divergence(golden, logits_of(golden, *backend, rows));
          EXPECT_LT(kl.best_90, 0.002)
              << name << ", " << slot_bytes << " bytes, rows " << rows << ", " << from;
        }
      }
    }
  }
}

/// Somebody else takes what the GPU's memory has left while the model runs: steps go on as they were, or end
/// with an error that says so, and never with wrong numbers.
TEST(CudaOffload, MemoryThatGoesAwayIsAnErrorAtMost) {
  CudaForTest device(true);
  if (device.backend == nullptr) GTEST_SKIP() << device.why;
  const std::shared_ptr<program::Backend> cuda = std::move(device.backend),
                                          cpu = backend::make_cpu_backend({.threads = 4});
  const Golden golden = golden_of("glm-q4_k_m");
  const model::Model model = model::Model::load(golden.model);
  const size_t all = program::routed_experts(model.program).size();
  const auto backend = backend::make_offload_backend(cuda, cpu,
                                                     {.mixtures = all,
                                                      .bytes = int64_t{1} << 40,
                                                      .stream_rows = 7,
                                                      .slot_bytes = bytes_of_last(golden, all) * 5 / 8});
  const program::Source source{model.program, model.weights};
  const auto weights = backend->load({&source, 1}, {});
  const auto pages =
      static_cast<int32_t>(engine::KvPool::pages_for(static_cast<int64_t>(golden.tokens.size())));
  const auto executable =
      backend->compile(source, weights, {.max_rows = 64, .max_outputs = 64, .cache_pages = pages});
  // A model with a cache of all that is free; then of ever less, until nothing is.
  std::vector<std::unique_ptr<program::Executable>> taken;
  const int64_t page = program::cache_bytes(model.program, {.pages = 1});
  for (int64_t bytes = cuda->available_bytes(); bytes > (int64_t{1} << 20);) {
    try {
      taken.push_back(cuda->compile(source, cuda->load({&source, 1}, {}),
                                    {.max_rows = 1, .cache_pages = static_cast<int32_t>(bytes / page)}));
    } catch (const Error&) {
      bytes /= 2;
    }
  }
  EXPECT_LT(cuda->available_bytes(), int64_t{64} << 20);
  EXPECT_THROW(backend->compile(source, weights, {.max_rows = 64, .cache_pages = 4000}), Error);
  for (const int64_t rows : {1, 7, 1, 7}) {
    try {
      const auto logits = logits_in_steps(golden, *executable, rows, [&](int64_t) { return rows; });
      EXPECT_LT(divergence(golden, logits).best_90, 0.002) << rows;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos) << error.what();
    }
  }
}

/// Between two executables of one GPU, which hand over on different streams.
TEST(CudaOffload, OneDeviceMayBeBothPlaces) {
  CudaForTest device;
  if (device.backend == nullptr) GTEST_SKIP() << device.why;
  const std::shared_ptr<program::Backend> cuda = std::move(device.backend);
  const Golden golden = golden_case("glm-q4_k_m");
  const auto backend = backend::make_offload_backend(cuda, cuda, {.mixtures = 1, .bytes = int64_t{1} << 40});
  for (const int64_t rows : {1, 7, 512}) {
    const std::vector<float> first = logits_of(golden, *backend, rows);
    EXPECT_LT(divergence(golden, first).best_90, 0.0004) << rows;
    EXPECT_EQ(first, logits_of(golden, *backend, rows)) << rows;
  }
}

}  // namespace
}  // namespace sluice::test
