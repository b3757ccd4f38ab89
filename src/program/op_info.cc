#include "program/op_info.h"

#include <array>
#include <type_traits>
#include <utility>

namespace sluice::program {
namespace {

/// Calls a description's operand visitor with (name, id, written), absent operands left out.
struct OperandVisitor {
  const std::function<void(const char*, TensorId, bool)>& call;
  void operator()(const char* name, Read read) const {
    if (read) call(name, read.id, false);
  }
  void operator()(const char* name, Write write) const {
    if (write.id != kNoTensor) call(name, write.id, true);
  }
};

template <typename Args>
constexpr OpInfo row() {
  OpInfo info{};
  info.name = Args::kName;
  info.across_places = requires { Args::kAcrossPlaces; };
  info.check = [](const Program& p, const Op& op) { std::get<Args>(op.args).check(p); };
  info.cost = [](const Program& p, const Op& op, const StepShape& shape) {
    return std::get<Args>(op.args).cost(p, shape);
  };
  if constexpr (requires(const Args& args, RefMemory& memory, const StepInput& input) {
                  args.reference(memory, input);
                }) {
    info.reference = [](RefMemory& memory, const Op& op, const StepInput& input) {
      std::get<Args>(op.args).reference(memory, input);
    };
  } else {
    info.expand = [](Builder& b, const Op& op) { std::get<Args>(op.args).expand(b); };
  }
  info.cases = [] { return Args::cases(); };
  info.operands = [](const Op& op, const std::function<void(const char*, TensorId, bool)>& call) {
    std::get<Args>(op.args).operands(OperandVisitor{call});
  };
  info.attributes = [](const Op& op) { return std::get<Args>(op.args).attributes(); };
  return info;
}

template <size_t... I>
constexpr auto rows(std::index_sequence<I...>) {
  return std::array{row<std::variant_alternative_t<I, OpKinds>>()...};
}

constexpr auto kTable = rows(std::make_index_sequence<std::variant_size_v<OpKinds>>());

}  // namespace

std::span<const OpInfo> all_ops() { return kTable; }
const OpInfo& info(const Op& op) { return kTable[op.args.index()]; }

}  // namespace sluice::program
