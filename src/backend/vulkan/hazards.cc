#include "backend/vulkan/hazards.h"

#include <algorithm>

#include "program/op_info.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

int64_t cache_layer_of(const Op& op) {
  return std::visit(
      [](const auto& args) -> int64_t {
        if constexpr (requires { args.cache_layer; }) return args.cache_layer;
        if constexpr (requires { args.query.cache_layer; }) return args.query.cache_layer;
        return -1;
      },
      op.args);
}

}  // namespace

bool Hazards::Access::conflicts(const Access& other) const {
  if (!written && !other.written) return false;
  if (layer >= 0 || other.layer >= 0) return storage == other.storage && layer == other.layer;
  if (begin >= other.end || other.begin >= end) return false;
  const bool columns_apart = storage == other.storage && row > 0 && row == other.row &&
                             (last_column <= other.first_column || other.last_column <= first_column);
  return !columns_apart;
}

Hazards::Access Hazards::access(TensorId id, bool written, int64_t layer) const {
  const Program& program = layout_.program;
  const Tensor& tensor = program[id];
  const TensorId storage = program.storage(id);
  Access access{.storage = storage, .written = written};
  if (tensor.kind == Kind::Cache || tensor.kind == Kind::State) {
    access.layer = std::max<int64_t>(layer, 0);
    return access;
  }
  const Tensor& whole = program[storage];
  const int64_t rows = Program::rows(whole, layout_.options.max_rows, layout_.options.max_outputs);
  access.begin = layout_.plan.offset_bytes[static_cast<size_t>(storage)];
  access.end = access.begin + rows * whole.shape[1] * whole.shape[2] * 4;
  // Columns of a head, where a view has all heads or the only one.
  if (tensor.offset < whole.stride[1] && tensor.stride == whole.stride && tensor.heads() == whole.heads()) {
    access.row = whole.stride[1];
    access.first_column = tensor.offset, access.last_column = tensor.offset + tensor.columns();
  }
  return access;
}

bool Hazards::before(const Op& op, bool uses_scratch) {
  std::vector<Access> own;
  info(op).operands(op, [&](const char*, TensorId id, bool written) {
    if (layout_.program[id].kind != Kind::Weight) own.push_back(access(id, written, cache_layer_of(op)));
  });
  if (uses_scratch) own.push_back({.begin = layout_.scratch_at, .end = layout_.arena_bytes, .written = true});
  const bool waits = std::any_of(own.begin(), own.end(), [&](const Access& one) {
    return std::any_of(since_.begin(), since_.end(),
                       [&](const Access& other) { return one.conflicts(other); });
  });
  if (waits) since_.clear();
  since_.insert(since_.end(), own.begin(), own.end());
  return waits;
}

}  // namespace sluice::backend::vulkan
