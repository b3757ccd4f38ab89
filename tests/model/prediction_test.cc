// Blocks of multi-token prediction: their logits beside a plain model's in numpy, and trunks that leave
// hidden states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "engine/batch.h"
#include "model/model.h"
#include "support/golden.h"
#include "support/golden_cases.h"
#include "support/isas.h"

namespace sluice::test {
namespace {

using model::Model;
using testing::HasSubstr;

constexpr const char* kFiles[] = {"glm-mtp", "glm-mtp-experts"};

/// Steps of so many rows of one sequence through the trunk and, with the tokens behind them, the block, each
/// on a backend: all logits that the block gives.
std::vector<float> predicted(const Golden& golden, program::Backend& trunks, program::Backend& blocks,
                             int64_t rows) {
  Model model = Model::load(golden.model);
  EXPECT_EQ(model.add_prediction(), std::nullopt);
  const auto columns = static_cast<size_t>(model.spec.dim);
  const program::CompileOptions options{.max_rows = rows, .max_outputs = rows, .cache_pages = 2};
  const auto trunk = trunks.compile(model.program, model.weights, options);
  const auto block = blocks.compile(model.prediction->program, model.prediction->weights, options);
  const int32_t pages[] = {1, 0};
  engine::Batch batch(rows, 1, 2);
  std::vector<float> all, hidden;
  const auto last = std::ssize(golden.tokens) - 1;
  for (int64_t first = 0; first < last; first += rows) {
    const auto step = [&](int64_t ahead) {
      batch.clear();
      batch.set_pages(0, pages);
      for (int64_t at = first; at < std::min(last, first + rows); ++at)
        batch.add(golden.tokens[static_cast<size_t>(at + ahead)], static_cast<int32_t>(at), 0, ahead > 0);
      return batch.step();
    };
    run_step(*trunk, step(0));
    hidden.resize(static_cast<size_t>(batch.rows()) * columns);
    trunk->peek(trunk->program().hidden_out(), batch.rows(), hidden);
    block->poke(block->program().hidden_in(), batch.rows(), hidden);
    for (const program::RowResult& row : run_step(*block, step(1)).outputs)
      all.insert(all.end(), row.logits.begin(), row.logits.end());
  }
  return all;
}

Golden case_of(const char* file) { return oracle_case(file, file); }

TEST(Prediction, ReferenceAgreesWithThePlainModel) {
  const auto ref = backend::make_ref_backend();
  for (const char* file : kFiles) {
    const Golden golden = case_of(file);
    for (const int64_t rows : {1, 7, 79}) {
      const auto logits = predicted(golden, *ref, *ref, rows);
      ASSERT_EQ(logits.size(), golden.logits.size());
      EXPECT_LT(relative_error(logits, golden.logits), 1e-3) << file << ", " << rows << " rows";
    }
  }
}

// Of hidden states in float32, by the limit of the trunk's own logits.
TEST(Prediction, CpuIsWithinTheLimit) {
  const auto ref = backend::make_ref_backend();
  for (const char* file : kFiles) {
    const Golden golden = case_of(file);
    Golden rows_of_block = golden;
    rows_of_block.tokens.pop_back();  // the last one gives no row
    for (const backend::cpu::Isa isa : usable_isas()) {
      SCOPED_TRACE(backend::cpu::isa_name(isa));
      const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
      for (const int64_t rows : {1, 7, 79}) {
        const Divergence kl = divergence(rows_of_block, predicted(golden, *ref, *cpu, rows));
        EXPECT_LT(kl.best_90, 0.0014) << file << ", " << rows;
        EXPECT_LT(kl.mean, 0.02) << file << ", " << rows;
      }
    }
  }
}

TEST(Prediction, ATrunkThatLeavesHiddenStatesGivesTheSameBits) {
  const Golden golden = case_of("glm-mtp");
  const Model plain = Model::load(golden.model);
  Model leaves = Model::load(golden.model);
  ASSERT_EQ(leaves.add_prediction(), std::nullopt);
  ASSERT_NE(leaves.program.hidden_out(), program::kNoTensor);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    for (const int64_t rows : {1, 7})
      EXPECT_EQ(logits_of(golden, plain, *cpu, rows), logits_of(golden, leaves, *cpu, rows));
  }
  const auto ref = backend::make_ref_backend();
  EXPECT_EQ(logits_of(golden, plain, *ref, 80), logits_of(golden, leaves, *ref, 80));
}

// What a step left there is whole behind it, of a step aside, too, and while a long one is paused.
TEST(Prediction, HiddenStatesAreThoseOfTheLastStepThatEnded) {
  const Golden golden = case_of("glm-mtp");
  Model model = Model::load(golden.model);
  ASSERT_EQ(model.add_prediction(), std::nullopt);
  const auto cpu = backend::make_cpu_backend({.threads = 2});
  const auto trunk = cpu->compile(model.program, model.weights,
                                  {.max_rows = 8, .max_outputs = 8, .cache_pages = 4, .aside_rows = 8});
  const int32_t one[] = {0, 1}, other[] = {2, 3};
  engine::Batch batch(8, 2, 2);
  const auto hidden = [&](int32_t place, program::Turn turn) {
    batch.clear();
    batch.set_pages(0, one);
    batch.set_pages(1, other);
    for (int32_t at = 0; at < 5; ++at)
      batch.add(golden.tokens[static_cast<size_t>(at + 5 * place)], at, place, at == 4);
    program::Step step = batch.step();
    step.turn = turn;
    const program::StepResult result = run_step(*trunk, step);
    std::vector<float> rows(static_cast<size_t>(5 * model.spec.dim));
    trunk->peek(trunk->program().hidden_out(), 5, rows);
    const auto last = std::span(rows).last(static_cast<size_t>(model.spec.dim));
    EXPECT_TRUE(std::ranges::equal(last, result.outputs[0].hidden)) << "as the output matrix sees it";
    return rows;
  };
  const auto first = hidden(0, program::Turn::Whole), second = hidden(1, program::Turn::Whole);
  EXPECT_NE(first, second);
  EXPECT_EQ(hidden(0, program::Turn::Aside), first);
  EXPECT_EQ(hidden(1, program::Turn::Aside), second);
}

TEST(Prediction, AFileWithoutItSaysSoAndStaysAsItIs) {
  Model model = Model::load(oracle_case("glm", "glm").model);
  const std::string before = program::dump(model.program);
  EXPECT_THAT(model.add_prediction().value_or(""), HasSubstr("no block of multi-token prediction"));
  EXPECT_EQ(program::dump(model.program), before);
  EXPECT_FALSE(model.prediction);
}

}  // namespace
}  // namespace sluice::test
