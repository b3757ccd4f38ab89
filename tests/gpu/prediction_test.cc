// Blocks of multi-token prediction on the CUDA backend: their logits beside a plain model's, what is drafted
// beside the reference, also behind steps that begin ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "backend/ref/ref_backend.h"
#include "engine/batcher.h"
#include "support/cuda.h"
#include "support/golden.h"
#include "support/golden_cases.h"
#include "support/predicted.h"
#include "support/recorder.h"
#include "support/script_executable.h"

namespace sluice::test {
namespace {

using namespace engine;
using Tokens = std::vector<int32_t>;

TEST(CudaPrediction, BlocksAreWithinTheLimitOfDivergence) {
  CUDA_OR_SKIP(cuda);
  for (const BlockCase& file : kBlocks) {
    const Golden golden = file.golden();
    Golden rows_of_block = golden;
    rows_of_block.tokens.pop_back();  // the last one gives no row
    for (const int64_t rows : {1, 2, 7, 79}) {
      const Divergence kl =
          divergence(rows_of_block, predicted(golden.model, golden.tokens, cuda, cuda, rows));
      EXPECT_LT(kl.best_90, file.kl_limit) << file.name << ", " << rows;
      EXPECT_LT(kl.mean, 0.02) << file.name << ", " << rows;
    }
  }
}

/// Notes what a block says behind rows, by their positions.
class Watched : public program::Executable {
 public:
  explicit Watched(program::Executable& of) : of_(of) {}
  program::Facts facts() const override { return of_.facts(); }
  program::Ticket submit(const program::Step& step) override {
    asked_.clear();
    for (const int32_t row : step.input.output_rows)
      asked_.push_back(step.input.positions[static_cast<size_t>(row)]);
    return of_.submit(step);
  }
  program::StepResult collect(program::Ticket ticket) override {
    const program::StepResult result = of_.collect(ticket);
    for (size_t i = 0; i < asked_.size(); ++i) said[asked_[i]] = result.outputs[i].top[0].token;
    return result;
  }
  void take_rows(program::Executable& from, program::TensorId id, std::span<const RowCopy> rows) override {
    of_.take_rows(&from == this ? of_ : from, id, rows);
  }
  void peek(program::TensorId, int64_t, std::span<float>) override {}
  void poke(program::TensorId, int64_t, std::span<const float>) override {}
  const program::Program& program() const override { return of_.program(); }
  std::vector<program::BoundKernel> bound() const override { return of_.bound(); }
  int64_t memory_bytes() const override { return of_.memory_bytes(); }

  std::map<int32_t, int32_t> said;

 private:
  program::Executable& of_;
  std::vector<int32_t> asked_;
};

// While two answers run, steps begin ahead, for there is room for a single draft; when one has ended, what is
// drafted for the other is the likeliest by the reference of the block, which has seen the whole text: but
// where rounding chose another expert or turned two tokens round, which the block's own logits, by the same
// kernels from step to step, do as often.
TEST(CudaPrediction, DraftsAreTheLikeliestBehindStepsAheadToo) {
  CUDA_OR_SKIP(cuda);
  const auto ref = backend::make_ref_backend();
  const text::Tokenizer tokenizer = byte_tokenizer();
  for (const BlockCase& file : kBlocks) {
    SCOPED_TRACE(file.name);
    const std::string path = file.golden().model;
    ModelWithBlock pair(cuda, path, {.max_rows = 16, .max_outputs = 2, .cache_pages = 6});
    Watched block(*pair.block);
    const std::vector<Tokens> prompts = {{5, 9, 13, 17}, {40, 3, 31, 22, 8, 50, 11}};
    std::vector<std::shared_ptr<Recorder>> answers;
    Batcher batcher(*pair.trunk, tokenizer,
                    {.context = 192,
                     .max_sequences = 2,
                     .max_rows = 16,
                     .pages = 6,
                     .draft_tokens = 1,
                     .look_up = false,
                     .predictor = &block,
                     .timeless = true});
    for (const Tokens& prompt : prompts) {
      answers.push_back(std::make_shared<Recorder>());
      Request request{.prompt = prompt, .max_tokens = answers.size() == 1 ? 40 : 150, .ignore_end = true};
      request.sampling.temperature = 0;
      batcher.add(answers.size(), std::move(request), answers.back(), 1);
    }
    while (batcher.step()) {
    }
    Tokens text = prompts[1];
    text.insert(text.end(), answers[1]->tokens.begin(), answers[1]->tokens.end());
    const auto best = [&](program::Backend& of, int64_t rows) {
      const auto logits = predicted(path, text, of, of, rows);
      const size_t columns = logits.size() / (text.size() - 1);
      std::vector<int32_t> tokens;
      for (size_t row = 0; row < logits.size(); row += columns) {
        // Of all columns, as the block says: some stand for no token of the vocabulary.
        const auto all = std::span(logits).subspan(row, columns);
        tokens.push_back(static_cast<int32_t>(std::ranges::max_element(all) - all.begin()));
      }
      return tokens;
    };
    const std::vector<int32_t> right = best(*ref, std::ssize(text)), plain = best(cuda, 1);
    ASSERT_GT(block.said.size(), 40u);
    int others = 0, plain_others = 0;
    for (const auto& [position, token] : block.said) {
      const auto at = static_cast<size_t>(position);
      others += token != right[at];
      plain_others += plain[at] != right[at];
    }
    const auto count = static_cast<int>(block.said.size());
    EXPECT_LT(plain_others, count / 4);
    EXPECT_LE(others, plain_others + count / 10) << count << " drafts";
  }
}

}  // namespace
}  // namespace sluice::test
