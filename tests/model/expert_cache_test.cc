// Copies of experts of layers at the second place: which are kept (backend/places/expert_cache.h), and that
// golden cases stay within their limits whatever is kept. Two places of the CPU stand for a GPU and a CPU.
#include "backend/places/expert_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/expert_copies.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"
#include "program/expert_slots.h"
#include "program/offload.h"
#include "program/slot_reader.h"
#include "support/golden_cases.h"
#include "support/slots.h"
#include "support/wrapped_executable.h"

namespace sluice::test {
namespace {

using backend::places::ExpertCache;
using backend::places::ExpertCopies;
using backend::places::Swap;

/// A step's selection and how it was dealt out.
struct Dealt {
  std::vector<float> ids, weights, slot_ids, slot_weights;
  int64_t misses = 0;

  Dealt(ExpertCache& cache, size_t layer, std::vector<float> selected, std::vector<float> factors)
      : ids(std::move(selected)),
        weights(std::move(factors)),
        slot_ids(ids.size()),
        slot_weights(ids.size()) {
    misses = cache.deal(layer, {ids, weights, slot_ids, slot_weights});
  }
};

std::vector<Swap> list_of(std::span<const Swap> swaps) { return {swaps.begin(), swaps.end()}; }

TEST(ExpertCache, EveryExpertIsDealtToOnePlace) {
  ExpertCache cache({{.experts = 8, .slots = 3, .used = 2}});
  const Dealt dealt(cache, 0, {1, 5, 6, 7, 2, 0}, {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f});
  EXPECT_EQ(dealt.misses, 3);
  EXPECT_EQ(dealt.ids, (std::vector<float>{-1, 5, 6, 7, -1, -1}));
  EXPECT_EQ(dealt.weights, (std::vector<float>{0, 0.2f, 0.3f, 0.4f, 0, 0}));
  EXPECT_EQ(dealt.slot_weights, (std::vector<float>{0.1f, 0, 0, 0, 0.5f, 0.6f}));
  EXPECT_EQ(dealt.slot_ids[0], 1);
  EXPECT_EQ(dealt.slot_ids[4], 2);
  EXPECT_EQ(dealt.slot_ids[5], 0);
  for (size_t row = 0; row < 6; row += 2) {  // no row has a slot twice
    EXPECT_NE(dealt.slot_ids[row], dealt.slot_ids[row + 1]) << row;
    for (size_t k = row; k < row + 2; ++k) EXPECT_TRUE(dealt.slot_ids[k] >= 0 && dealt.slot_ids[k] < 3) << k;
  }
  EXPECT_EQ(cache.selected(), 6);
  EXPECT_EQ(cache.hits(), 3);
}

TEST(ExpertCache, WhatIsUsedMostTakesTheSlotThatIsUsedLeast) {
  ExpertCache cache({{.experts = 8, .slots = 3, .used = 2}});
  EXPECT_TRUE(cache.choose(4).empty());
  for (int i = 0; i < 20; ++i) Dealt(cache, 0, {1, 6}, {1, 1});
  Dealt(cache, 0, {0, 6}, {1, 1});
  const std::vector<Swap> chosen = list_of(cache.choose(4));
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(chosen[0].expert, 6);
  EXPECT_EQ(chosen[0].slot, 2) << "expert 2 was never used";
  EXPECT_EQ(cache.slot_of(0, 2), -1);
  EXPECT_EQ(cache.slot_of(0, 6), -1) << "it has not arrived";
  EXPECT_TRUE(cache.choose(4).empty()) << "one a layer at a time";
  // A slot that is being filled is nobody's, not even with weight 0.
  for (const float id : Dealt(cache, 0, {6, 7}, {1, 1}).slot_ids) EXPECT_NE(id, 2);
  cache.arrived({0, 2, 6});
  EXPECT_EQ(cache.slot_of(0, 6), 2);
  EXPECT_EQ(Dealt(cache, 0, {1, 6}, {1, 1}).misses, 0);
}

TEST(ExpertCache, AFailedCopyLeavesAnEmptySlot) {
  ExpertCache cache({{.experts = 8, .slots = 3, .used = 2}});
  for (int i = 0; i < 20; ++i) Dealt(cache, 0, {1, 6}, {1, 1});
  const Swap swap = cache.choose(1).front();
  cache.failed(swap);
  EXPECT_EQ(cache.slot_of(0, 6), -1);
  EXPECT_EQ(Dealt(cache, 0, {6, 7}, {1, 1}).misses, 2);
  EXPECT_EQ(cache.choose(1).front().slot, swap.slot) << "it is tried again";
}

/// Hits of the last half of so many rows of one layer, whose experts are drawn by these weights; copies
/// arrive at once.
double hit_rate(const std::vector<double>& weights, int64_t slots, int rows, int64_t* brought = nullptr) {
  constexpr int kUsed = 4;
  ExpertCache cache({{static_cast<int64_t>(weights.size()), slots, kUsed}});
  std::mt19937 random(7);
  int64_t hits = 0, swaps = 0;
  for (int r = 0; r < rows; ++r) {
    std::vector<double> left = weights;
    std::vector<float> ids;
    for (int k = 0; k < kUsed; ++k) {
      const auto id = std::discrete_distribution<size_t>(left.begin(), left.end())(random);
      left[id] = 0, ids.push_back(static_cast<float>(id));
    }
    const int64_t misses = Dealt(cache, 0, ids, std::vector<float>(kUsed, 1.0f)).misses;
    if (r >= rows / 2) hits += kUsed - misses;
    for (const Swap& swap : list_of(cache.choose(1))) cache.arrived(swap), ++swaps;
  }
  if (brought != nullptr) *brought = swaps;
  return static_cast<double>(hits) / (kUsed * (rows - rows / 2));
}

// The best that any choice of half the experts reaches is what its most likely ones are selected.
TEST(ExpertCache, FindsTheExpertsThatAreSelectedMost) {
  std::vector<double> skewed(64);
  std::mt19937 random(3);
  for (size_t e = 0; e < skewed.size(); ++e) skewed[e] = std::exp(-0.06 * static_cast<double>(e));
  std::ranges::shuffle(skewed, random);
  EXPECT_GT(hit_rate(skewed, 32, 2000), 0.75);
  // Where all are alike there is nothing to gain, and little is copied.
  int64_t brought = 0;
  EXPECT_NEAR(hit_rate(std::vector<double>(64, 1.0), 32, 2000, &brought), 0.5, 0.05);
  EXPECT_LT(brought, 60);
}

TEST(ExpertCopies, EndWithOrWithoutSuccess) {
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0;
  bool goes_on = false;
  ExpertCopies copies([&](const Swap& swap) {
    std::unique_lock lock(mutex);
    ++begun;
    changed.notify_all();
    changed.wait(lock, [&] { return goes_on; });
    if (swap.expert == 2) fail("no memory");
  });
  EXPECT_TRUE(copies.idle());
  const std::vector<Swap> swaps{{0, 0, 1}, {1, 0, 2}, {2, 0, 3}};
  copies.begin(swaps);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun == 1; });
  }
  EXPECT_FALSE(copies.idle());
  int ended = 0;
  copies.take_ended([&](const Swap&, bool) { ++ended; });
  EXPECT_EQ(ended, 0) << "nobody waits for a copy";
  {
    const std::lock_guard lock(mutex);
    goes_on = true;
  }
  changed.notify_all();
  std::vector<std::pair<int32_t, bool>> seen;
  while (seen.size() < swaps.size()) {
    copies.take_ended([&](const Swap& swap, bool arrived) { seen.emplace_back(swap.expert, arrived); });
    std::this_thread::yield();
  }
  EXPECT_EQ(seen, (std::vector<std::pair<int32_t, bool>>{{1, true}, {2, false}, {3, false}}));
  EXPECT_EQ(begun, 2) << "after a failure nothing is copied";
  EXPECT_FALSE(copies.idle());
}

std::shared_ptr<program::Backend> cpu(int threads) { return backend::make_cpu_backend({.threads = threads}); }

program::ExpertUse use_of(const program::Executable& executable) {
  return dynamic_cast<const program::ExpertCounts&>(executable).expert_use();
}

std::unique_ptr<program::Backend> with_slots(const model::Model& model, size_t mixtures, int64_t slots,
                                             int64_t stream_from = program::kNeverStream) {
  // One thread each: it is not the team's meetings that are tested.
  return backend::make_offload_backend(cpu(1), cpu(1),
                                       {.mixtures = mixtures,
                                        .bytes = int64_t{1} << 40,
                                        .stream_rows = stream_from,
                                        .slot_bytes = bytes_for(model.program, mixtures, slots)});
}

/// Few slots, half of the experts, and all.
TEST(ExpertSlots, GoldenCasesStayWithinTheirLimits) {
  // A gate and its up in one tensor, shared experts of several kinds, groups, experts without shared ones.
  const std::set<std::string> names{"glm-q4_0",        "glm-q4_k_m", "lite-q4_k_m-yarn", "v3-groups",
                                    "qwen3moe-q4_k_m", "glm-fused",  "qwen3next-q4_k_m", "glm4moe-q8_0-air"};
  size_t tried = 0;
  for (const Case& one : kCases) {
    if (!names.contains(one.name)) continue;
    const Golden golden = read_case(one);
    const model::Model model = model::Model::load(golden.model);
    const size_t mixtures = program::routed_experts(model.program).size();
    const auto all = program::slots_of(model.program, mixtures, int64_t{1} << 40);
    ASSERT_FALSE(all.empty()) << one.name;
    SCOPED_TRACE(one.name);
    EXPECT_TRUE(program::slots_of(model.program, mixtures, 1).empty()) << "a byte is no slot";
    const int64_t fewest = fewest_slots(model.program, mixtures);
    EXPECT_LE(fewest, all[0]);
    for (const int64_t slots : std::set<int64_t>{fewest, all[0] / 2 + 1, all[0]}) {
      const auto backend = with_slots(model, mixtures, slots);
      for (const int64_t rows : {1, 7, 512}) {
        const Divergence kl = divergence(golden, logits_of(golden, *backend, rows));
        EXPECT_LT(kl.best_90, one.kl_limit) << slots << " slots, rows " << rows;
      }
    }
    ++tried;
  }
  EXPECT_EQ(tried, names.size());
}

/// Experts with biases have no copies.
TEST(ExpertSlots, AreForPlainExpertsAlone) {
  const model::Model model = model::Model::load(golden_case("gpt-oss-mxfp4", kMoe).model);
  const size_t mixtures = program::routed_experts(model.program).size();
  ASSERT_GT(mixtures, 0u);
  EXPECT_TRUE(program::slots_of(model.program, mixtures, int64_t{1} << 40).empty());
}

/// Steps of one row with the model's own tokens again and again, until `done`.
template <typename F>
void run_rows(program::Executable& executable, const F& done) {
  engine::KvPool pool(4);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.reserve(table, 64));
  engine::Batch batch(1, 1, 4);
  batch.set_pages(0, table);
  for (int32_t step = 0; !done(); ++step) {
    batch.clear();
    batch.add(step % 7, step % 64, 0, true);
    run_step(executable, {.input = batch.input()});
  }
}

class BundledSlots : public testing::Test {
 protected:
  std::unique_ptr<program::Executable> compile(int64_t slots, bool batch_invariant = false) {
    backend_ = with_slots(model, mixtures, slots);
    const program::Source source{model.program, model.weights};
    weights_ = backend_->load({&source, 1}, {});
    return again(batch_invariant);
  }
  std::unique_ptr<program::Executable> again(bool batch_invariant = false) {
    return backend_->compile({model.program, model.weights}, weights_,
                             {.max_rows = 1, .cache_pages = 4, .batch_invariant = batch_invariant});
  }

  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  const size_t mixtures = program::routed_experts(model.program).size();
  const int64_t experts = program::slots_of(model.program, mixtures, int64_t{1} << 40).at(0);

 private:
  std::unique_ptr<program::Backend> backend_;
  std::shared_ptr<const program::WeightSet> weights_;
};

TEST_F(BundledSlots, WithASlotForEachEverythingIsHit) {
  const auto executable = compile(experts);
  int steps = 0;
  run_rows(*executable, [&] { return steps++ == 8; });
  const program::ExpertUse use = use_of(*executable);
  EXPECT_GT(use.selected, 0);
  EXPECT_EQ(use.hits, use.selected);
  EXPECT_EQ(use.slots, experts * static_cast<int64_t>(mixtures));
  EXPECT_EQ(use.layers, static_cast<int64_t>(mixtures));
}

TEST_F(BundledSlots, WhatIsSelectedAgainAndAgainIsBrought) {
  const auto executable = compile(experts / 2 + 1);
  run_rows(*executable, [&] { return use_of(*executable).brought >= 2; });
  const program::ExpertUse use = use_of(*executable);
  EXPECT_GT(use.hits, 0);
  EXPECT_LT(use.hits, use.selected);
}

// Slots are one executable's; another one over the same weights computes all at the second place.
TEST_F(BundledSlots, AreFilledByOneExecutable) {
  auto first = compile(experts);
  const auto second = again();
  const auto logits = [](program::Executable& executable) {
    std::vector<float> list;
    int steps = 0;
    run_rows(executable, [&] { return steps++ == 8; });
    list.resize(static_cast<size_t>(executable.program()[executable.program().output()].columns()));
    executable.peek(executable.program().output(), 1, list);
    return list;
  };
  EXPECT_EQ(use_of(*second).layers, 0);
  const std::vector<float> with = logits(*first), without = logits(*second);
  EXPECT_LT(relative_error(with, without), 0.02);
  first.reset();
  EXPECT_EQ(use_of(*again()).layers, static_cast<int64_t>(mixtures));
}

TEST_F(BundledSlots, AreNotUsedWhereRowsMustNotFeelEachOther) {
  EXPECT_EQ(use_of(*compile(experts, true)).layers, 0);
}

/// What slots hold, by the weight and the slot: where the file has it.
using Held = std::map<std::pair<program::TensorId, int64_t>, const std::byte*>;

/// The first place's executable, which notes what is put into its slots.
class NotedSlots : public WrappedExecutable, public program::SlotFiller {
 public:
  NotedSlots(std::unique_ptr<program::Executable> of, Held& held)
      : WrappedExecutable(std::move(of)), held_(held) {}
  program::Executable& inner() { return *of_; }
  program::Ticket submit(const program::Step& step) override { return of_->submit(step); }
  program::StepResult collect(program::Ticket ticket) override { return of_->collect(ticket); }
  void run_part(const program::Step& step, size_t part) override { of_->run_part(step, part); }
  void fill(program::TensorId weight, int64_t slot, std::span<const std::byte> matrix) override {
    dynamic_cast<program::SlotFiller&>(*of_).fill(weight, slot, matrix);
    const std::lock_guard lock(mutex_);
    held_[{weight, slot}] = matrix.data();
  }

 private:
  Held& held_;
  std::mutex mutex_;
};

/// The executable of streamed steps, which looks at what its tables name.
class SlotsThatAreRead : public WrappedExecutable, public program::SlotReader {
 public:
  SlotsThatAreRead(std::unique_ptr<program::Executable> of, const Held& held, program::WeightBytes files)
      : WrappedExecutable(std::move(of)), held_(held), files_(std::move(files)) {}
  int64_t hits = 0, misses = 0;

  void take_from(program::TensorId weight, program::SlotFiller&, program::TensorId slots,
                 std::span<const int32_t> slot_of) override {
    tables_[weight] = {slots, slot_of};
  }
  program::Ticket submit(const program::Step& step) override {
    for (const auto& [weight, table] : tables_) {
      const auto& [slots, slot_of] = table;
      const program::Tensor& tensor = program()[weight];
      const std::span<const std::byte> file = files_[static_cast<size_t>(program().storage(weight))];
      EXPECT_EQ(std::ssize(slot_of), tensor.shape[0]);
      const size_t each = file.size() / static_cast<size_t>(tensor.shape[0]);
      for (size_t e = 0; e < slot_of.size(); ++e) {
        slot_of[e] < 0 ? ++misses : ++hits;
        if (slot_of[e] >= 0) {
          EXPECT_EQ(held_.at({slots, slot_of[e]}), file.data() + e * each) << tensor.name << " " << e;
        }
      }
    }
    return of_->submit(step);
  }
  program::StepResult collect(program::Ticket ticket) override { return of_->collect(ticket); }
  size_t tables() const { return tables_.size(); }

 private:
  const Held& held_;
  program::WeightBytes files_;
  std::map<program::TensorId, std::pair<program::TensorId, std::span<const int32_t>>> tables_;
};

/// A CPU that stands for a GPU, whose streamed steps look for copies.
class NotingBackend : public program::Backend {
 public:
  std::string name() const override { return of_->name(); }
  program::Facts facts() const override { return of_->facts(); }
  bool has(const program::Program& program, const program::Op& op) const override {
    return of_->has(program, op);
  }
  program::Binding bind(const program::Source& source,
                        const program::CompileOptions& options) const override {
    return of_->bind(source, options);
  }
  program::MemoryNeeds memory_needs(const program::Program& program,
                                    const program::CompileOptions& options) const override {
    return of_->memory_needs(program, options);
  }
  std::shared_ptr<const program::WeightSet> load(std::span<const program::Source> sources,
                                                 const program::Progress& progress) override {
    return of_->load(sources, progress);
  }
  std::unique_ptr<program::Executable> compile(const program::Source& source,
                                               std::shared_ptr<const program::WeightSet> weights,
                                               const program::CompileOptions& asked) override {
    program::CompileOptions options = asked;
    auto* const caches_of = dynamic_cast<NotedSlots*>(asked.caches_of);
    if (caches_of != nullptr) options.caches_of = &caches_of->inner();
    auto made = of_->compile(source, std::move(weights), options);
    if (caches_of == nullptr) return std::make_unique<NotedSlots>(std::move(made), held_);
    auto reader = std::make_unique<SlotsThatAreRead>(std::move(made), held_, source.weights);
    streamed = reader.get();
    return reader;
  }
  const program::Peaks& peaks() override { return of_->peaks(); }
  double measure_read_bandwidth() override { return of_->measure_read_bandwidth(); }

  SlotsThatAreRead* streamed = nullptr;

 private:
  std::unique_ptr<program::Backend> of_ = backend::make_cpu_backend({.threads = 1});
  Held held_;
};

// While the steps between them bring others.
TEST_F(BundledSlots, StreamedStepsFindInASlotTheExpertThatItIsSaidToHold) {
  const auto first = std::make_shared<NotingBackend>();
  const auto backend =
      backend::make_offload_backend(first, cpu(1),
                                    {.mixtures = mixtures,
                                     .bytes = int64_t{1} << 40,
                                     .stream_rows = 8,
                                     .slot_bytes = bytes_for(model.program, mixtures, experts / 2 + 1)});
  const auto executable = backend->compile(model.program, model.weights, {.max_rows = 8, .cache_pages = 4});
  ASSERT_NE(first->streamed, nullptr);
  EXPECT_EQ(first->streamed->tables(), 3 * mixtures);
  engine::KvPool pool(4);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.reserve(table, 64));
  engine::Batch prompt(8, 1, 4);
  prompt.set_pages(0, table);
  for (int32_t i = 0; i < 8; ++i) prompt.add(i % 5, i, 0, i == 7);
  for (const int64_t brought : {0, 2, 5}) {
    run_rows(*executable, [&] { return use_of(*executable).brought >= brought; });
    run_step(*executable, {.input = prompt.input()});
  }
  EXPECT_EQ(first->streamed->hits + first->streamed->misses,
            3 * 3 * experts * static_cast<int64_t>(mixtures));
  EXPECT_GE(first->streamed->hits, 3 * 3 * (experts / 2) * static_cast<int64_t>(mixtures));
}

TEST_F(BundledSlots, TakeTheBytesThatAreGiven) {
  const auto slots = program::slots_of(model.program, mixtures, bytes_for(model.program, mixtures, 5));
  ASSERT_EQ(slots.size(), mixtures);
  for (const int64_t one : slots) EXPECT_EQ(one, 5);
  // One byte less, and one of them has one less.
  const auto less = program::slots_of(model.program, mixtures, bytes_for(model.program, mixtures, 5) - 1);
  EXPECT_EQ(std::accumulate(less.begin(), less.end(), int64_t{0}), static_cast<int64_t>(5 * mixtures) - 1);
  EXPECT_TRUE(program::slots_of(model.program, mixtures, 0).empty());
  EXPECT_TRUE(program::slots_of(model.program, 0, int64_t{1} << 40).empty());
}

// What the first place streams counts for what it keeps, too.
TEST(ExpertSlots, StreamedPromptsCount) {
  const Case& one =
      *std::ranges::find_if(kCases, [](const Case& c) { return std::string(c.name) == "glm-q4_k_m"; });
  const Golden golden = read_case(one);
  const model::Model model = model::Model::load(golden.model);
  const size_t mixtures = program::routed_experts(model.program).size();
  const auto all = program::slots_of(model.program, mixtures, int64_t{1} << 40);
  for (const int64_t from : {1, 7, 8}) {
    const auto backend = with_slots(model, mixtures, all.at(0) / 2 + 1, from);
    EXPECT_LT(divergence(golden, logits_of(golden, *backend, 7)).best_90, one.kl_limit) << from;
  }
}

}  // namespace
}  // namespace sluice::test
