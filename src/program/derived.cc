#include "program/derived.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace sluice::program {

TensorId hidden_states(const Program& program) {
  TensorId logits = program.output();
  for (const Op& op : program.ops()) {
    const auto* scale = std::get_if<Scale>(&op.args);
    if (scale != nullptr && scale->out.id == program.output()) logits = scale->in.id;
  }
  for (const Op& op : program.ops()) {
    const auto* product = std::get_if<Matmul>(&op.args);
    if (product != nullptr && product->out.id == logits) return product->in.id;
  }
  return kNoTensor;
}

void find_top(std::span<const float> logits, std::span<Likely> top) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // A heap whose first one is the worst that is kept.
  const auto better = [](const Likely& a, const Likely& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  size_t kept = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > kNone)) continue;
    if (kept == top.size()) {
      if (logits[i] <= top.front().logit) continue;  // of equal ones the first stays
      std::pop_heap(top.begin(), top.end(), better);
      --kept;
    }
    top[kept++] = {logits[i], static_cast<int32_t>(i)};
    std::push_heap(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(kept), better);
  }
  std::sort_heap(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(kept), better);
  std::fill(top.begin() + static_cast<std::ptrdiff_t>(kept), top.end(), Likely{kNone, -1});
}

int32_t drawn_from(std::span<const Likely> top, const Draw& draw) {
  const auto known = std::ranges::find(top, -1, &Likely::token) - top.begin();
  if (known == 0) return 0;
  if (draw.temperature == 0) return top.front().token;
  const auto most = std::min<std::ptrdiff_t>(known, draw.top_k);
  const std::span<const Likely> few = top.first(static_cast<size_t>(most));
  // Logarithm of how much less likely one is than the likeliest; both may be infinite.
  const auto below = [&](const Likely& one) {
    return one.logit == few[0].logit ? 0.0 : double{one.logit} - double{few[0].logit};
  };
  double total = 0, before = 0;
  for (const Likely& one : few) total += std::exp(below(one));
  size_t left = 0;  // that may be drawn
  for (; left < few.size(); ++left) {
    if (left > 0 && draw.top_p < 1 && before >= draw.top_p * total) break;
    if (draw.min_p > 0 && below(few[left]) < std::log(double{draw.min_p})) break;
    before += std::exp(below(few[left]));
  }
  double weights = 0, sum = 0;
  for (const Likely& one : few.first(left)) weights += std::exp(below(one) / draw.temperature);
  for (const Likely& one : few.first(left)) {
    sum += std::exp(below(one) / draw.temperature);
    if (sum > draw.uniform * weights) return one.token;
  }
  return few[left - 1].token;
}

StepResult Derived::complete(const Step& step, const StepResult& given) {
  if (given.stopped || given.paused) return given;
  const size_t count = given.outputs.size();
  constexpr auto kTop = static_cast<size_t>(kMaxTopK);
  outputs_.assign(given.outputs.begin(), given.outputs.end());
  if (top_.size() < count * kTop) top_.resize(count * kTop);
  int32_t verified = 0;  // outputs from here on that are drawn for others' drafts
  for (size_t i = 0; i < count; ++i, --verified) {
    const Want want = step.want(static_cast<int64_t>(i));
    if (want.drafts > 0) verified = std::max(verified, want.drafts + 1);
    RowResult& row = outputs_[i];
    const bool drawn = row.drawn < 0 && (want.drawn || verified > 0);
    if (row.top.empty() && (want.top || drawn)) {
      CHECK(!row.logits.empty(), "output {} gives nothing", i);
      const auto top = std::span(top_).subspan(i * kTop, kTop);
      find_top(row.logits, top);
      row.top = top;
    }
    if (drawn) row.drawn = drawn_from(row.top, want.draw);
  }
  for (size_t i = 0; i < count; ++i) {
    const int32_t drafts = step.want(static_cast<int64_t>(i)).drafts;
    RowResult& row = outputs_[i];
    if (drafts == 0 || row.accepted >= 0) continue;
    CHECK(i + static_cast<size_t>(drafts) < count, "{} drafts behind output {}", drafts, i);
    row.accepted = 0;
    for (size_t at = i; row.accepted < drafts; ++at, ++row.accepted) {
      const auto next = static_cast<size_t>(step.input.output_rows[at + 1]);
      if (outputs_[at].drawn != step.input.tokens[next]) break;
    }
  }
  return {.outputs = outputs_};
}

}  // namespace sluice::program
