// How much of a model stays on a GPU with so much memory. A backend of the CPU stands in for the GPU's.
#include "cli/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "backend/places/places_backend.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "cli/serving_model.h"
#include "engine/kv_pool.h"
#include "program/offload.h"
#include "program/op_info.h"

namespace sluice::cli {
namespace {

TEST(MemorySize, IsWrittenAsPeopleWriteIt) {
  EXPECT_EQ(memory_size_of("1000"), 1000);
  EXPECT_EQ(memory_size_of("1000B"), 1000);
  EXPECT_EQ(memory_size_of("12GB"), 12'000'000'000);
  EXPECT_EQ(memory_size_of("10.5GiB"), int64_t{21} << 29);
  EXPECT_EQ(memory_size_of("8G"), int64_t{8} << 30);
  EXPECT_EQ(memory_size_of("800m"), int64_t{800} << 20);
  EXPECT_EQ(memory_size_of("1Ti"), int64_t{1} << 40);
  for (const char* text : {"", "GB", "1Q", "1GBs", "-1G", "0", "nan", "inf", "1e30", "1 GB", "1GiBB", "0x10"})
    EXPECT_THROW(memory_size_of(text), UsageError) << text;
}

class FitTest : public testing::Test {
 protected:
  Fitted with(int64_t bytes) {
    return fit_to(*gpu, model,
                  {.share = {.bytes = bytes, .stream_rows = -1, .cache_mixtures = 0}, .context = 256});
  }

  model::Model model = model::Model::load(bundled_model_path());
  std::unique_ptr<program::Backend> gpu = make_backend("cpu", 1);
  std::vector<program::RoutedExperts> mixtures = program::routed_experts(model.program);
};

TEST_F(FitTest, AsManyMixturesLeaveAsMust) {
  ASSERT_GT(mixtures.size(), 2u);
  const Fitted all = with(int64_t{1} << 30);
  EXPECT_EQ(all.mixtures, 0u);
  EXPECT_EQ(all.moved_bytes, 0);
  EXPECT_EQ(all.all_mixtures, mixtures.size());
  // The least that it fits into with no mixture away, then with one more each time.
  int64_t least = int64_t{1} << 30;
  for (size_t away = 0; away < mixtures.size(); ++away) {
    int64_t too_little = 0;
    while (least - too_little > 1) {
      const int64_t middle = too_little + (least - too_little) / 2;
      bool fits = false;
      try {
        fits = with(middle).mixtures <= away;
      } catch (const Error&) {
      }
      (fits ? least : too_little) = middle;
    }
    const Fitted fitted = with(least);
    EXPECT_EQ(fitted.mixtures, away);
    EXPECT_EQ(with(least - 1).mixtures, away + 1) << "a byte less";
    EXPECT_EQ(with(least - 1).moved_bytes - fitted.moved_bytes, mixtures[mixtures.size() - 1 - away].bytes);
  }
}

// What layers beyond those that must leave is room for copies, to the last slot.
TEST_F(FitTest, ExpertsThatLeaveMakeRoomForCopies) {
  const program::CompileOptions options{.max_rows = 512,
                                        .max_outputs = 1,
                                        .cache_pages = engine::KvPool::pages_for(256),
                                        .context = 256,
                                        .warm = true};
  const program::MemoryNeeds whole = gpu->memory_needs(model.program, options);
  const int64_t bytes = whole.weights_bytes + whole.cache_bytes + whole.scratch_bytes - 1;
  const auto fitted_with = [&](int64_t cache_mixtures, int64_t cpu_bytes) {
    return fit_to(
        *gpu, model,
        {.share = {.bytes = bytes, .stream_rows = -1, .cache_mixtures = cache_mixtures}, .context = 256},
        cpu_bytes);
  };
  const Fitted none = fitted_with(0, kUnknownMemory);
  ASSERT_EQ(none.mixtures, 1u);
  EXPECT_EQ(none.slots, 0);
  for (const int64_t asked : {1, 1000}) {
    const Fitted fitted = fitted_with(asked, kUnknownMemory);
    EXPECT_EQ(fitted.mixtures, std::min(mixtures.size(), 1 + static_cast<size_t>(asked)));
    const program::Offload offload{fitted.mixtures, fitted.bytes, fitted.stream_rows, fitted.slot_bytes};
    const auto taken = [&](const program::Offload& one) {
      const program::MemoryNeeds needs = program::offload_needs(*gpu, model.program, one, options);
      return needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes;
    };
    EXPECT_LE(taken(offload), bytes);
    program::Offload next = offload;
    next.slot_bytes += mixtures.back().bytes;
    EXPECT_GT(taken(next), bytes) << "a layer's experts more";
    const auto slots = program::slots_of(model.program, fitted.mixtures, fitted.slot_bytes);
    EXPECT_EQ(fitted.slots, std::accumulate(slots.begin(), slots.end(), int64_t{0}));
    EXPECT_GT(fitted.slots, 0);
  }
  // They would lie in the CPU's memory twice.
  EXPECT_EQ(fitted_with(1, 1000).slots, 0);
}

/// A card of which only the needs are asked: weights that ops read, or room for a layer of those that stream,
/// and so much a row.
class Card : public program::Backend {
 public:
  explicit Card(int64_t row_bytes) : row_bytes_(row_bytes) {}
  std::string name() const override { return "card"; }
  program::Facts facts() const override { return {.prompt_rows = 1024, .streams = true}; }
  bool has(const program::Program&, const program::Op&) const override { return true; }
  program::Binding bind(const program::Source&, const program::CompileOptions&) const override { return {}; }
  program::MemoryNeeds memory_needs(const program::Program& program,
                                    const program::CompileOptions& options) const override {
    program::MemoryNeeds needs{.scratch_bytes = row_bytes_ * options.max_rows};
    std::set<program::TensorId> read;
    int64_t streamed = 0;
    for (const program::Op& op : program.ops()) {
      program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
        if (id == program::kNoTensor || program[id].kind != program::Kind::Weight) return;
        if (!read.insert(program.storage(id)).second) return;
        const program::Tensor& weight = program[program.storage(id)];
        const int64_t bytes = quant::bytes_of(quant::type_info(weight.type),
                                              weight.shape[0] * weight.shape[1] * weight.shape[2]);
        weight.streamed ? streamed = std::max(streamed, 3 * bytes) : needs.weights_bytes += bytes;
      });
    }
    needs.weights_bytes += streamed;
    return needs;
  }
  std::unique_ptr<program::Executable> compile(const program::Source&,
                                               std::shared_ptr<const program::WeightSet>,
                                               const program::CompileOptions&) override {
    throw std::logic_error("a fit compiles nothing");
  }
  const program::Peaks& peaks() override { throw std::logic_error("a fit measures nothing"); }
  double measure_read_bandwidth() override { throw std::logic_error("a fit measures nothing"); }

 private:
  int64_t row_bytes_;
};

// A little memory is enough for shorter steps of prompts that stream, whatever rows are asked for at most.
TEST_F(FitTest, StepsAreShorterWhereStreamingHasNoRoomForMore) {
  const Card card(mixtures.back().bytes / 10'000);
  const auto needed = [&](int64_t rows) {
    const program::MemoryNeeds needs =
        program::offload_needs(card, model.program, {.mixtures = mixtures.size(), .stream_rows = 0},
                               {.max_rows = rows, .cache_pages = engine::KvPool::pages_for(256)});
    return needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes;
  };
  const auto fitted = [&](int64_t bytes, int64_t rows = 0) {
    return fit_to(card, model,
                  {.share = {.bytes = bytes, .cache_mixtures = 0}, .context = 256, .rows = rows});
  };
  for (const int64_t rows : {1024, 512, 256}) {
    const Fitted shorter = fitted(needed(rows));
    EXPECT_EQ(shorter.rows, rows);
    EXPECT_EQ(shorter.mixtures, mixtures.size());
    EXPECT_EQ(shorter.stream_rows, 0);
    for (const int64_t asked : {rows, 2 * rows, int64_t{2048}}) {
      EXPECT_EQ(fitted(needed(rows), asked).rows, rows) << asked;
      EXPECT_EQ(fitted(needed(rows), asked).stream_rows, 0) << asked;
    }
    EXPECT_EQ(fitted(needed(rows), rows - 1).rows, rows - 1) << "no more than was asked for";
  }
  EXPECT_EQ(fitted(needed(256) - 1).stream_rows, program::kNeverStream);
  EXPECT_EQ(fitted(needed(256) - 1, 2048).stream_rows, program::kNeverStream);
}

// What is measured and served has the rows that memory was fitted for, and not those that were asked for.
TEST_F(FitTest, NoStepHasMoreRowsThanWereFitted) {
  const std::shared_ptr<program::Backend> one = std::move(gpu);
  const auto shared = backend::make_offload_backend(
      one, make_backend("cpu", 1), {.mixtures = 1, .bytes = int64_t{1} << 30, .prompt_rows = 512});
  EXPECT_EQ(rows_with_room(*shared, 2048), 512);
  EXPECT_EQ(rows_with_room(*shared, 256), 256);
  EXPECT_EQ(rows_with_room(*one, 2048), 2048);
  EXPECT_EQ(serving_rows(model.spec, *shared, 2048, 1).most, 512);
  EXPECT_EQ(serving_rows(model.spec, *shared, 256, 1).most, 256);
  EXPECT_EQ(serving_rows(model.spec, *shared, 0, 1).most, 512);
}

TEST_F(FitTest, SaysWhatIsLackingWhereNothingHelps) {
  try {
    with(1000);
    FAIL() << "it cannot fit";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("even with all routed experts in the CPU's"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("fairy-tales.gguf"), std::string::npos) << error.what();
  }
}

TEST_F(FitTest, TellsWhatLiesWhere) {
  const Fitted alone{24, 46, int64_t{10} << 30, 8'900'000'000, program::kNeverStream};
  const std::string text =
      "GPU memory: 10.74 GB; experts of 24 of 46 layers, 8.90 GB, are computed by the CPU";
  EXPECT_EQ(alone.text(), text);
  Fitted streams = alone;
  streams.stream_rows = 96;
  streams.rows = 512;
  EXPECT_EQ(streams.text(), text + ", or come to the GPU for prompts, 512 rows a step at most");
  Fitted copies = alone;
  copies.slots = 512;
  EXPECT_EQ(copies.text(), text + "; the GPU has copies of 512 of them");
}

}  // namespace
}  // namespace sluice::cli
