#include "engine/judged_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "engine/scorer.h"

namespace sluice::engine {
namespace {

/// Rows whose logits are kept to be compared: with 256 thousand of them, 32 MB.
constexpr int64_t kComparedRows = 32;

struct WrittenText {
  std::vector<int32_t> tokens;  ///< the prompt's, too
  std::vector<float> logits;    ///< of the first kComparedRows that were written
};

WrittenText write(program::Executable& writer, std::span<const int32_t> prompt, int64_t tokens) {
  WrittenText text{{prompt.begin(), prompt.end()}, {}};
  const auto end = static_cast<int64_t>(prompt.size()) + tokens;
  std::vector<int32_t> pages(static_cast<size_t>(KvPool::pages_for(end)));
  std::iota(pages.begin(), pages.end(), 0);
  Batch batch(1, 1, static_cast<int32_t>(pages.size()));
  batch.set_pages(0, pages);
  for (int64_t at = 0; at + 1 < end; ++at) {
    const auto written = static_cast<int64_t>(text.tokens.size());
    batch.clear();
    batch.set_state(0, {static_cast<int32_t>(at % 2), static_cast<int32_t>(1 - at % 2)});
    batch.add(text.tokens[static_cast<size_t>(at)], static_cast<int32_t>(at), 0, at + 1 == written);
    for (const program::RowResult& row : program::run_step(writer, batch.step()).outputs) {
      text.tokens.push_back(static_cast<int32_t>(std::ranges::max_element(row.logits) - row.logits.begin()));
      if (written < static_cast<int64_t>(prompt.size()) + kComparedRows)
        text.logits.insert(text.logits.end(), row.logits.begin(), row.logits.end());
    }
  }
  return text;
}

}  // namespace

JudgedText judge_text(program::Executable& writer, program::Executable& judge, int64_t judge_rows,
                      std::span<const int32_t> prompt, int64_t tokens) {
  CHECK(!prompt.empty() && tokens > 0);
  const WrittenText text = write(writer, prompt, tokens);
  JudgedText judged{.tokens = tokens, .first_other = tokens};
  const auto begin = static_cast<int64_t>(prompt.size());
  double squares = 0;
  Scorer scorer(judge, begin + tokens, judge_rows);
  // The last token is drawn and not run.
  scorer.run(std::span(text.tokens).first(text.tokens.size() - 1), begin - 1,
             [&](int64_t position, std::span<const float> logits) {
               const int64_t index = position + 1 - begin;
               const float own = logits[static_cast<size_t>(text.tokens[static_cast<size_t>(position) + 1])];
               const double behind = static_cast<double>(*std::ranges::max_element(logits)) - own;
               if (behind == 0) {
                 ++judged.first;
               } else {
                 judged.first_other = std::min(judged.first_other, index);
                 judged.farthest = behind > judged.farthest || std::isnan(behind) ? behind : judged.farthest;
               }
               const size_t row = static_cast<size_t>(index) * logits.size();
               for (size_t i = 0; row + logits.size() <= text.logits.size() && i < logits.size(); ++i) {
                 const double error = static_cast<double>(text.logits[row + i]) - logits[i];
                 squares += error * error;
               }
             });
  judged.logit_error = std::sqrt(squares / static_cast<double>(text.logits.size()));
  return judged;
}

}  // namespace sluice::engine
