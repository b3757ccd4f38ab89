#include "backend/ranks/side.h"

#include <algorithm>
#include <numeric>

#include "program/op_info.h"

namespace sluice::backend {

using namespace program;

namespace {

int64_t columns_of(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

/// Before what rank 0 brings, and before what is handed over: whether the step goes on.
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
  if (const auto* copy = std::get_if<Copy>(&op.args))
    meeting.from = whole_[copy->in.id].place, meeting.to = whole_[copy->out.id].place;
  meetings_.push_back(std::move(meeting));
}

bool Side::run(const StepInput& input, const std::atomic<bool>* stop) {
  const Step step{.input = input};
  size_t next = 0;
  word_ = 0;
  for (const Meeting& meeting : meetings_) {
    const bool goes_on = word_ == 0;
    if (meeting.is_ours && goes_on) executable_->run_part(step, next++);
    if (channel_.rank() == 0) look_at(stop);
    if (meeting.from >= 0) {
      hand_over(meeting, input);  // who waits for it is to hear that the step is given up
      continue;
    }
    meet(meeting, input);
    if (word_ != 0) return false;
  }
  if (word_ != 0) return false;
  if (executable_ != nullptr) executable_->run_part(step, next);
  return true;
}

void Side::look_at(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) word_ = 1;
}

// Of rows that there are none of nothing is said: so a step without outputs is over for rank 0 when it has
// handed over what it has, and the next one begins while others still run this one.
void Side::hand_over(const Meeting& meeting, const StepInput& input) {
  const bool gives = meeting.from == channel_.rank(), takes = meeting.to == channel_.rank();
  const int64_t rows = Program::rows(*meeting.shape, input.rows(), input.outputs());
  if (rows == 0 || (!gives && !takes)) return;
  const std::span<float> all =
      std::span(all_).first(static_cast<size_t>(kWord + rows * columns_of(*meeting.shape)));
  const std::span<float> values = all.subspan(kWord);
  if (gives) {
    all[0] = word_;
    if (word_ == 0) executable_->peek(meeting.in, rows, values);
    channel_.give(meeting.to, all);
    return;
  }
  channel_.take(meeting.from, all);
  word_ = std::max(word_, all[0]);
  if (word_ == 0) executable_->poke(meeting.out.at(0), rows, values);
}

void Side::meet(const Meeting& meeting, const StepInput& input) {
  const int64_t rows = Program::rows(*meeting.shape, input.rows(), input.outputs());
  int64_t total = 0, mine = 0;
  for (size_t r = 0; r < counts_.size(); ++r) {
    if (static_cast<int>(r) == channel_.rank()) mine = total;
    counts_[r] = rows * meeting.columns[r] + (r == 0 ? kWord : 0);
    total += counts_[r];
  }
  if (channel_.rank() == 0) {
    all_[0] = word_;
    mine = kWord;
  }
  const auto own = static_cast<size_t>(rows * meeting.columns[static_cast<size_t>(channel_.rank())]);
  if (meeting.in != kNoTensor && rows > 0)
    executable_->peek(meeting.in, rows, std::span(all_).subspan(static_cast<size_t>(mine), own));
  channel_.gather(std::span(all_).first(static_cast<size_t>(total)), counts_);
  word_ = all_[0];
  if (word_ != 0 || rows == 0 || meeting.out.empty()) return;
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
  for (const int64_t columns : meeting.columns) {
    if (columns == 0) continue;
    for (size_t k = 0; k < count; ++k) out_[k] = at == 0 ? brought[k] : out_[k] + brought[at + k];
    at += count;
  }
  return std::span<const float>(out_).first(count);
}

}  // namespace sluice::backend
