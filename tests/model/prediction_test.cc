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
#include "support/predicted.h"

namespace sluice::test {
namespace {

using model::Model;
using testing::HasSubstr;

std::vector<float> logits_of_block(const Golden& golden, program::Backend& trunks, program::Backend& blocks,
                                   int64_t rows) {
  return predicted(golden.model, golden.tokens, trunks, blocks, rows);
}

Golden case_of(const char* file) { return oracle_case(file, file); }

TEST(Prediction, ReferenceAgreesWithThePlainModel) {
  const auto ref = backend::make_ref_backend();
  for (const BlockCase& file : kBlocks) {
    const Golden golden = file.golden();
    for (const int64_t rows : {1, 7, 79}) {
      const auto logits = logits_of_block(golden, *ref, *ref, rows);
      ASSERT_EQ(logits.size(), golden.logits.size());
      EXPECT_LT(relative_error(logits, golden.logits), 1e-3) << file.name << ", " << rows << " rows";
    }
  }
}

// Of hidden states in float32, by the limit of the trunk's own logits.
TEST(Prediction, CpuIsWithinTheLimit) {
  const auto ref = backend::make_ref_backend();
  for (const BlockCase& file : kBlocks) {
    const Golden golden = file.golden();
    Golden rows_of_block = golden;
    rows_of_block.tokens.pop_back();  // the last one gives no row
    for (const backend::cpu::Isa isa : usable_isas()) {
      SCOPED_TRACE(backend::cpu::isa_name(isa));
      const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
      for (const int64_t rows : {1, 7, 79}) {
        const Divergence kl = divergence(rows_of_block, logits_of_block(golden, *ref, *cpu, rows));
        EXPECT_LT(kl.best_90, file.kl_limit) << file.name << ", " << rows;
        EXPECT_LT(kl.mean, 0.02) << file.name << ", " << rows;
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

// Rows that move up within what the block's next step begins with, as those of answers that have ended make
// room, and rows that it takes of its own; on a backend whose memory is the host's and by the plain way.
TEST(Prediction, RowsMoveOneAfterTheOther) {
  using Copy = program::Executable::RowCopy;
  const Golden golden = case_of("glm-mtp");
  const auto cpu = backend::make_cpu_backend({.threads = 2});
  const auto ref = backend::make_ref_backend();
  for (program::Backend* backend : {cpu.get(), ref.get()}) {
    ModelWithBlock pair(*backend, golden.model, {.max_rows = 8, .max_outputs = 8, .cache_pages = 2});
    program::Executable& block = *pair.block;
    const auto columns = static_cast<size_t>(pair.model.spec.dim);
    const auto rows_of = [&](program::Executable& of, program::TensorId id) {
      std::vector<float> values(8 * columns);
      of.peek(id, 8, values);
      std::vector<float> first;
      for (size_t r = 0; r < 8; ++r) first.push_back(values[r * columns + columns - 1]);
      return first;
    };
    const program::TensorId in = block.program().hidden_in(), out = block.program().hidden_out();
    std::vector<float> numbers(8 * columns);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i / columns);
    block.poke(in, 8, numbers);
    block.take_rows(block, in, std::vector<Copy>{{1, 0}, {2, 1}, {3, 2}, {6, 3}, {7, 4}});
    EXPECT_THAT(rows_of(block, in), testing::ElementsAre(1, 2, 3, 6, 7, 5, 6, 7)) << backend->name();

    engine::Batch batch(8, 1, 2);
    const int32_t pages[] = {1, 0};
    batch.set_pages(0, pages);
    for (int32_t at = 0; at < 8; ++at) batch.add(golden.tokens[static_cast<size_t>(at)], at, 0, true);
    run_step(block, batch.step());
    const std::vector<float> left = rows_of(block, out);
    block.take_rows(block, out, std::vector<Copy>{{7, 0}, {2, 1}});
    const std::vector<float> taken = rows_of(block, in);
    EXPECT_EQ(taken[0], left[7]) << backend->name();
    EXPECT_EQ(taken[1], left[2]) << backend->name();
  }
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
