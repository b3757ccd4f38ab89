// Runs one op case (program/operand.h) on any backend: a Program of the case, random weights and inputs.
// What a test asserts or a benchmark measures is their business.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "program/backend.h"
#include "program/builder.h"
#include "program/op_info.h"
#include "support/random_weights.h"

namespace sluice::test {

using namespace program;

/// A case's Program. An executable copies its output out at the end: any float result will do.
inline Program program_of(const OpCase& op_case) {
  Program program;
  Builder builder(program);
  op_case.build(builder);
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool written) {
      if (written && program[id].kind == Kind::Activation && program[id].type == quant::Type::F32)
        program.set_output(id);
    });
  }
  return program;
}

class CaseRun {
 public:
  CaseRun(const OpCase& op_case, uint64_t seed)
      : program_(program_of(op_case)), rows_(op_case.rows), random_(seed) {
    make_weights();
    make_step();
  }

  const Program& program() const { return program_; }
  const WeightBytes& weights() const { return weights_; }
  int64_t rows() const { return rows_; }
  int64_t rows_of(TensorId id) const { return Program::rows(program_[id], rows_, rows_); }
  size_t elements(TensorId id) const {
    return static_cast<size_t>(rows_of(id) * program_[id].heads() * program_[id].columns());
  }
  /// Activations that an op writes; the last op's are the results.
  std::vector<TensorId> results() const {
    std::vector<TensorId> ids;
    const Op& last = program_.ops().back();
    info(last).operands(last, [&](const char*, TensorId id, bool written) {
      if (written && program_[id].kind == Kind::Activation) ids.push_back(id);
    });
    return ids;
  }

  std::unique_ptr<Executable> compile(Backend& backend) const {
    const Source source{program_, weights_};
    return compile(backend, backend.load({&source, 1}, {}));
  }
  /// Over weights that are loaded.
  std::unique_ptr<Executable> compile(Backend& backend, std::shared_ptr<const WeightSet> weights) const {
    auto executable =
        backend.compile(Source{program_, weights_}, std::move(weights), {rows_, rows_, page_count()});
    poke_inputs(*executable);
    return executable;
  }
  void poke_inputs(Executable& executable) const {
    for (size_t i = 0; i < inputs_.size(); ++i)
      executable.poke(inputs_[i], rows_of(inputs_[i]), input_values_[i]);
  }
  void run(Executable& executable) const { run_step(executable, {.input = step()}); }
  StepInput step() const {
    static constexpr StateSlots kState{};
    return {tokens_, positions_, sequences_, slots_, pages_, page_count_, outputs_, {&kState, 1}};
  }

 private:
  int64_t page_count() const { return page_count_; }

  void make_weights() {
    std::vector<bool> written(program_.tensors().size(), false), seen(written);
    buffers_.resize(program_.tensors().size());
    weights_.resize(program_.tensors().size());
    for (const Op& op : program_.ops()) {
      info(op).operands(op, [&](const char*, TensorId id, bool writes) {
        const auto storage = static_cast<size_t>(program_.storage(id));
        if (writes) written[storage] = true;
        if (seen[storage] || written[storage]) return;
        seen[storage] = true;
        const Tensor& tensor = program_.tensors()[storage];
        if (tensor.kind == Kind::Weight) {
          const quant::TypeInfo& type = quant::type_info(tensor.type);
          const int64_t count = tensor.shape[0] * tensor.shape[1] * tensor.shape[2];
          buffers_[storage].resize(static_cast<size_t>(quant::bytes_of(type, count)));
          random_weights(type, buffers_[storage], random_);
          weights_[storage] = buffers_[storage];
        } else if (tensor.kind == Kind::Activation) {
          const auto base = static_cast<TensorId>(storage);
          inputs_.push_back(base);
          input_values_.emplace_back(elements(base));
          fill(input_values_.back(), tensor.columns());
        }
      });
    }
  }

  /// Normal numbers. Where rows fall into runs of 32, which a backend may quantise to eight bits under one
  /// scale, they are such numbers already: whole multiples of 2^-5 up to 127 of them, which the largest is.
  /// So a kernel's error is that of its own arithmetic, and not of the format that it chose.
  void fill(std::vector<float>& values, int64_t columns) {
    std::normal_distribution<float> normal;
    constexpr size_t kRun = 32;
    constexpr float kStep = 0x1p-5f;
    for (float& value : values) value = normal(random_);
    if (columns % static_cast<int64_t>(kRun) != 0) return;
    for (size_t at = 0; at < values.size(); at += kRun) {
      for (size_t i = at; i < at + kRun; ++i) {
        values[i] = kStep * std::clamp(std::round(values[i] / kStep), -127.0f, 127.0f);
      }
      values[at + random_() % kRun] = 127 * kStep;
    }
  }

  /// One sequence from position 0, its pages shuffled; tokens random; every row wants an output.
  void make_step() {
    page_count_ = static_cast<int32_t>((rows_ + kPageRows - 1) / kPageRows + 1);
    for (int32_t i = 0; i < page_count_; ++i) pages_.push_back(page_count_ - 1 - i);
    for (int32_t r = 0; r < rows_; ++r) {
      tokens_.push_back(static_cast<int32_t>(random_() % 1000));
      positions_.push_back(r);
      sequences_.push_back(0);
      slots_.push_back(pages_[static_cast<size_t>(r / kPageRows)] * kPageRows + r % kPageRows);
      outputs_.push_back(r);
    }
  }

  Program program_;
  int64_t rows_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::byte>> buffers_;
  WeightBytes weights_;
  std::vector<TensorId> inputs_;
  std::vector<std::vector<float>> input_values_;
  std::vector<int32_t> tokens_, positions_, sequences_, slots_, pages_, outputs_;
  int32_t page_count_ = 0;
};

}  // namespace sluice::test
