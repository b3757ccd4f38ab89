#include "backend/ranks/side.h"

#include <algorithm>
#include <numeric>

#include "program/op_info.h"

namespace sluice::backend {

using namespace program;

namespace {

int64_t columns_of(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

/// Before what rank 0 brings: whether the step goes on.
constexpr int64_t kWord = 1;

}  // namespace

Side::Side(const Program& whole, std::unique_ptr<Executable> executable, const CompileOptions& options,
           Channel& channel)
    : whole_(whole),
      executable_(std::move(executable)),
      channel_(channel),
      counts_(static_cast<size_t>(channel.ranks())) {
  for (const Op& op : whole.ops()) {
    if (info(op).across_places) add(op);
  }
  size_t most_in = kWord, most_out = 0;
  for (const Meeting& meeting : meetings_) {
    const int64_t rows = Program::rows(*meeting.shape, options.max_rows, options.max_outputs);
    const int64_t columns = std::accumulate(meeting.columns.begin(), meeting.columns.end(), int64_t{0});
    most_in = std::max(most_in, static_cast<size_t>(kWord + rows * columns));
    most_out = std::max(most_out, static_cast<size_t>(rows * columns));
  }
  all_.resize(most_in);
  out_.resize(most_out);
}

int64_t Side::memory_bytes() const {
  const int64_t bytes = static_cast<int64_t>((all_.size() + out_.size()) * sizeof(float));
  return bytes + (executable_ != nullptr ? executable_->memory_bytes() : 0);
}

void Side::add(const Op& op) {
  Meeting meeting{.op = &op};
  meeting.columns.resize(counts_.size());
  info(op).operands(op, [&](const char*, TensorId id, bool is_written) {
    const Tensor& tensor = whole_[id];
    const bool is_here = tensor.place == channel_.rank();
    meeting.is_ours = meeting.is_ours || is_here;
    if (is_written) {
      if (is_here) meeting.out.push_back(id);
      return;
    }
    meeting.columns[static_cast<size_t>(tensor.place)] = columns_of(tensor);
    meeting.shape = &tensor;
    if (is_here) meeting.in = id;
  });
  meetings_.push_back(std::move(meeting));
}

bool Side::run(const StepInput& input, const std::atomic<bool>* stop) {
  const Step step{.input = input};
  size_t next = 0;
  for (const Meeting& meeting : meetings_) {
    if (meeting.is_ours) executable_->run_part(step, next++);
    meet(meeting, input, stop);
    if (all_[0] != 0) return false;
  }
  if (executable_ != nullptr) executable_->run_part(step, next);
  return true;
}

void Side::meet(const Meeting& meeting, const StepInput& input, const std::atomic<bool>* stop) {
  const int64_t rows = Program::rows(*meeting.shape, input.rows(), input.outputs());
  int64_t total = 0, mine = 0;
  for (size_t r = 0; r < counts_.size(); ++r) {
    if (static_cast<int>(r) == channel_.rank()) mine = total;
    counts_[r] = rows * meeting.columns[r] + (r == 0 ? kWord : 0);
    total += counts_[r];
  }
  if (channel_.rank() == 0) {
    all_[0] = stop != nullptr && stop->load(std::memory_order_relaxed) ? 1.0f : 0.0f;
    mine = kWord;
  }
  const auto own = static_cast<size_t>(rows * meeting.columns[static_cast<size_t>(channel_.rank())]);
  if (meeting.in != kNoTensor && rows > 0)
    executable_->peek(meeting.in, rows, std::span(all_).subspan(static_cast<size_t>(mine), own));
  channel_.gather(std::span(all_).first(static_cast<size_t>(total)), counts_);
  if (all_[0] != 0 || rows == 0 || meeting.out.empty()) return;
  const std::span<const float> values = together(meeting, rows);
  for (const TensorId out : meeting.out) executable_->poke(out, rows, values);
}

/// What was brought, added up or side by side.
std::span<const float> Side::together(const Meeting& meeting, int64_t rows) {
  const std::span<const float> brought = std::span<const float>(all_).subspan(kWord);
  if (std::holds_alternative<AllGather>(meeting.op->args)) {
    const int64_t all = std::accumulate(meeting.columns.begin(), meeting.columns.end(), int64_t{0});
    int64_t first = 0;
    for (const int64_t columns : meeting.columns) {
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(brought.begin() + rows * first + r * columns, columns, out_.begin() + r * all + first);
      first += columns;
    }
    return std::span<const float>(out_).first(static_cast<size_t>(rows * all));
  }
  const auto count = static_cast<size_t>(rows * columns_of(*meeting.shape));
  size_t at = 0;
  for (const int64_t columns : meeting.columns) {  // of a copy one rank brings some
    if (columns == 0) continue;
    for (size_t k = 0; k < count; ++k) out_[k] = at == 0 ? brought[k] : out_[k] + brought[at + k];
    at += count;
  }
  return std::span<const float>(out_).first(count);
}

}  // namespace sluice::backend
