// The vocabulary that op descriptions (ops/<op>.h) are written in: typed operands, checks, costs, test cases.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "program/tensor.h"

namespace sluice::program {

class Builder;
class Program;
class RefMemory;
struct StepInput;
struct StepShape;

/// Operands say whether an op reads or writes a tensor: dependencies and memory plans follow from that.
struct Read {
  TensorId id = kNoTensor;
  explicit operator bool() const { return id != kNoTensor; }
};
struct Write {
  TensorId id = kNoTensor;
};

/// What an op must move and compute; the only such counts in the project.
struct Cost {
  double bytes_read = 0;
  double bytes_written = 0;
  double flops = 0;

  Cost& operator+=(const Cost& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    flops += other.flops;
    return *this;
  }
};

/// A shape to test and to benchmark an op at: builds a Program of this one op (and its operands).
struct OpCase {
  std::string name;
  int64_t rows = 1;
  std::function<void(Builder&)> build;
};

}  // namespace sluice::program
