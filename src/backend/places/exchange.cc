#include "backend/places/exchange.h"

#include <algorithm>

#include "base/check.h"
#include "program/op_info.h"

namespace sluice::backend::places {

using namespace program;

namespace {

/// Copies that are read together at most.
constexpr size_t kMostTogether = 8;

int64_t rows_of(const Tensor& tensor, const StepInput& input) {
  return Program::rows(tensor, input.rows(), input.outputs());
}

int64_t columns_of(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

}  // namespace

Exchange::Exchange(const Program& program, const CompileOptions& options) : program_(program) {
  size_t most = 0;
  for (const Op& op : program.ops()) {
    if (!info(op).across_places) continue;
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      const int64_t rows = Program::rows(program[id], options.max_rows, options.max_outputs);
      most = std::max(most, static_cast<size_t>(rows * columns_of(program[id])));
    });
  }
  in_.resize(most);
  out_.resize(
      2 * most);  // copies that are read together, too: beside a row's values, its experts' ids and weights
  peeks_.reserve(kMostTogether);
}

std::span<float> Exchange::read(TensorId id, const StepInput& input, const Executables& executables) {
  const Tensor& tensor = program_[id];
  const int64_t rows = rows_of(tensor, input);
  const std::span<float> values = std::span(in_).first(static_cast<size_t>(rows * columns_of(tensor)));
  executables[static_cast<size_t>(tensor.place)]->peek(id, rows, values);
  return values;
}

void Exchange::write(TensorId id, const StepInput& input, const Executables& executables) {
  const Tensor& tensor = program_[id];
  const int64_t rows = rows_of(tensor, input);
  executables[static_cast<size_t>(tensor.place)]->poke(
      id, rows, std::span(out_).first(static_cast<size_t>(rows * columns_of(tensor))));
}

TensorId Exchange::source(const Op& copy) { return std::get<Copy>(copy.args).in.id; }

size_t Exchange::values(const Op& copy, const StepInput& input) const {
  const Tensor& tensor = program_[source(copy)];
  return static_cast<size_t>(rows_of(tensor, input) * columns_of(tensor));
}

bool Exchange::have_room(std::span<const Op* const> copies, const StepInput& input) const {
  size_t all = 0;
  for (const Op* op : copies) all += values(*op, input);
  return copies.size() <= kMostTogether && all <= out_.size();
}

void Exchange::run_copies(std::span<const Op* const> copies, const StepInput& input,
                          const Executables& executables) {
  if (!have_room(copies, input)) {
    for (const Op* one : copies) run(*one, input, executables);
    return;
  }
  read_copies(copies, input, executables);
  write_copies(copies, executables);
}

std::span<const Executable::Peek> Exchange::read_copies(std::span<const Op* const> copies,
                                                        const StepInput& input,
                                                        const Executables& executables) {
  CHECK(have_room(copies, input), "{} copies at once", copies.size());
  peeks_.clear();
  size_t at = 0;
  for (const Op* op : copies) {
    const size_t count = values(*op, input);
    peeks_.push_back(
        {source(*op), rows_of(program_[source(*op)], input), std::span(out_).subspan(at, count)});
    at += count;
  }
  executables[static_cast<size_t>(program_[peeks_.front().id].place)]->peek_all(peeks_);
  return peeks_;
}

void Exchange::write_copies(std::span<const Op* const> copies, const Executables& executables) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const TensorId to = std::get<Copy>(copies[i]->args).out.id;
    executables[static_cast<size_t>(program_[to].place)]->poke(to, peeks_[i].rows, peeks_[i].values);
  }
}

void Exchange::run(const Op& op, const StepInput& input, const Executables& executables) {
  if (const auto* copy = std::get_if<Copy>(&op.args)) {
    std::ranges::copy(read(copy->in.id, input, executables), out_.begin());
    return write(copy->out.id, input, executables);
  }
  if (const auto* reduce = std::get_if<AllReduce>(&op.args)) {
    std::ranges::copy(read(reduce->in[0].id, input, executables), out_.begin());
    for (size_t i = 1; i < reduce->in.size(); ++i) {
      const std::span<const float> part = read(reduce->in[i].id, input, executables);
      for (size_t k = 0; k < part.size(); ++k) out_[k] += part[k];
    }
    for (const Write& out : reduce->out) write(out.id, input, executables);
    return;
  }
  const auto& gather = std::get<AllGather>(op.args);
  const Tensor& all = program_[gather.out[0].id];
  int64_t first = 0;
  for (const Read& in : gather.in) {
    const std::span<const float> part = read(in.id, input, executables);
    const int64_t columns = program_[in.id].columns();
    for (int64_t r = 0; r < rows_of(all, input); ++r)
      std::copy_n(part.begin() + r * columns, columns, out_.begin() + r * all.columns() + first);
    first += columns;
  }
  for (const Write& out : gather.out) write(out.id, input, executables);
}

}  // namespace sluice::backend::places
