// A token allocates nothing: neither in the executable's step nor in the engine around it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "support/golden.h"

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

#ifndef SLUICE_SANITIZED  // they have operators of their own
// Every allocation of this test program passes here.
void* operator new(size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace sluice::test {
namespace {

using namespace program;

/// Counts allocations from its n-th token to its last one.
class Counting : public engine::Listener {
 public:
  explicit Counting(int64_t from) : from_(from) {}
  void on_token(const engine::TokenEvent& event) override {
    if (event.index == from_) first_ = g_allocations;
    last_ = g_allocations, tokens_ = event.index + 1;
  }
  void on_end(engine::RequestId, std::string_view, const engine::Result&) override { ended = true; }
  int64_t allocations() const { return last_ - first_; }
  int64_t tokens() const { return tokens_ - from_ - 1; }
  std::atomic<bool> ended = false;

 private:
  int64_t from_, first_ = 0, last_ = 0, tokens_ = 0;
};

class Allocations : public testing::Test {
 protected:
#ifdef SLUICE_SANITIZED
  void SetUp() override { GTEST_SKIP() << "sanitizers have allocations of their own"; }
#endif
  model::Model model_ = model::Model::load(source_path("models/fairy-tales.gguf"));
  std::unique_ptr<Backend> backend_ = backend::make_cpu_backend({.threads = 2});
};

/// Those of ten steps of three rows.
int64_t allocations_of_steps(Backend& backend, const model::Model& model) {
  const auto executable = backend.compile(model.program, model.weights, {8, 2, 4});
  const int32_t tokens[] = {5, 6, 7}, positions[] = {0, 1, 2}, sequences[] = {0, 0, 0}, slots[] = {0, 1, 2},
                tables[] = {0, 1}, outputs[] = {2};
  const Step step{.input = {tokens, positions, sequences, slots, tables, 2, outputs}};
  run_step(*executable, step);
  const int64_t before = g_allocations;
  for (int i = 0; i < 10; ++i) run_step(*executable, step);
  return g_allocations - before;
}

TEST_F(Allocations, AStepHasNone) { EXPECT_EQ(allocations_of_steps(*backend_, model_), 0); }

TEST_F(Allocations, AStepOverPlacesHasNone) {
  const std::shared_ptr<Backend> cpu = std::move(backend_);
  EXPECT_EQ(allocations_of_steps(*backend::make_places_backend({{cpu, 2}, {cpu, 1}}), model_), 0);
}

TEST_F(Allocations, ATokenHasNone) {
  const text::Tokenizer tokenizer = model::load_tokenizer(model_.file);
  engine::EngineOptions options;
  options.context = 512, options.max_sequences = 2, options.max_rows = 64, options.draft_tokens = 0;
  options.pages = engine::KvPool::pages_for(options.context);
  const auto executable =
      backend_->compile(model_.program, model_.weights, {options.max_rows, options.outputs(), options.pages});
  engine::Engine engine(*executable, tokenizer, options);
  engine::Request request;
  request.prompt = {5, 6, 7, 8}, request.max_tokens = 60, request.ignore_end = true;
  const auto listener = std::make_shared<Counting>(10);
  engine.submit(std::move(request), listener);
  while (!listener->ended) std::this_thread::yield();
  EXPECT_EQ(listener->tokens(), 49);
  // Twice a doubling vector of the answer's tokens, once a page of the cache: not one a token.
  EXPECT_LE(listener->allocations(), 5)
      << listener->allocations() << " in " << listener->tokens() << " tokens";
}

}  // namespace
}  // namespace sluice::test
