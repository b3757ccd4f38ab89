// The table of ops: one row a kind, made from the descriptions in ops/. Tests, benchmarks, profiles and
// backends loop over it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "program/op.h"
#include "program/operand.h"

namespace sluice::program {

struct OpInfo {
  const char* name;
  /// Whether its operands lie at several places (places.h): what a device does not run by itself.
  bool across_places;
  /// Shapes and types; throws Error.
  void (*check)(const Program&, const Op&);
  /// Bytes and FLOPs of one step.
  Cost (*cost)(const Program&, const Op&, const StepShape&);
  /// The meaning in plain loops; null for a fused op, whose meaning is its expansion.
  void (*reference)(RefMemory&, const Op&, const StepInput&);
  /// The same in simpler ops; null for a primitive.
  void (*expand)(Builder&, const Op&);
  /// Real shapes to test and benchmark at.
  std::vector<OpCase> (*cases)();
  /// Calls back with (name, operand id, is it written) for every operand that is there.
  void (*operands)(const Op&, const std::function<void(const char*, TensorId, bool)>&);
  /// The scalar attributes as text: "eps 1e-05".
  std::string (*attributes)(const Op&);
};

/// All rows, in the order of OpKinds.
std::span<const OpInfo> all_ops();
const OpInfo& info(const Op& op);

}  // namespace sluice::program
