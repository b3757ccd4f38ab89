#include "program/ref_memory.h"

#include <limits>

#include "base/target_clones.h"
#include "program/op_info.h"

namespace sluice::program {
namespace {

/// The tensors with memory of their own that the ops touch, and the output: the others need none.
std::vector<bool> used_storages(const Program& program) {
  std::vector<bool> used(program.tensors().size(), false);
  if (program.output() != kNoTensor) used[static_cast<size_t>(program.storage(program.output()))] = true;
  for (const Op& op : program.ops()) {
    info(op).operands(
        op, [&](const char*, TensorId id, bool) { used[static_cast<size_t>(program.storage(id))] = true; });
  }
  return used;
}

}  // namespace

RefMemory::RefMemory(const Program& program, const WeightBytes& weights, const CompileOptions& options,
                     bool halves)
    : program_(program), weights_(weights), halves_(halves) {
  const size_t count = program.tensors().size();
  floats_.resize(count);
  ints_.resize(count);
  const std::vector<bool> used = used_storages(program);
  constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = program.tensors()[i];
    if (tensor.kind == Kind::Weight || !used[i]) continue;
    if (tensor.kind != Kind::Activation) {
      const int64_t bytes = cache_bytes(tensor, quant::Type::F32, options.cache_room());
      floats_[i].assign(static_cast<size_t>(bytes) / sizeof(float), kPoison);
      continue;
    }
    const auto elements = static_cast<size_t>(Program::rows(tensor, options.max_rows, options.max_outputs) *
                                              tensor.shape[1] * tensor.shape[2]);
    if (tensor.type == quant::Type::I32) {
      ints_[i].assign(elements, -1);
    } else {
      floats_[i].assign(elements, kPoison);
    }
  }
}

float* RefMemory::row(TensorId id, int64_t row, int64_t head) {
  const Tensor& t = program_[id];
  auto& storage = floats_[static_cast<size_t>(program_.storage(id))];
  return storage.data() + t.offset + row * t.stride[0] + head * t.stride[1];
}

int32_t* RefMemory::int_row(TensorId id, int64_t row, int64_t head) {
  const Tensor& t = program_[id];
  auto& storage = ints_[static_cast<size_t>(program_.storage(id))];
  return storage.data() + t.offset + row * t.stride[0] + head * t.stride[1];
}

void RefMemory::weight_row(TensorId id, int64_t matrix, int64_t row, float* out) const {
  const Tensor& t = program_[id];
  const quant::TypeInfo& type = quant::type_info(t.type);
  const int64_t first = t.offset + matrix * t.stride[0] + row * t.stride[1];
  const std::byte* bytes = weights_[static_cast<size_t>(program_.storage(id))].data();
  type.decode(bytes + quant::bytes_of(type, first), out, t.columns());
}

float* RefMemory::cache_row(TensorId cache, int64_t layer, int64_t slot) {
  return state_row(cache, layer, slot / kPageRows, slot % kPageRows);
}

float* RefMemory::state_row(TensorId state, int64_t layer, int64_t slot, int64_t row) {
  const auto& [layers, rows, columns] = program_[state].shape;
  return floats_[static_cast<size_t>(state)].data() + ((slot * layers + layer) * rows + row) * columns;
}

void RefMemory::round_cache_row(TensorId cache, int64_t layer, int64_t slot) {
  if (program_[cache].type != quant::Type::Q8_0 && !halves_) return;
  const quant::CacheRow format = program_[cache].cache_row();
  float* const row = cache_row(cache, layer, slot);
  rounded_.resize(static_cast<size_t>(format.bytes()));
  format.encode(row, rounded_.data());
  format.decode(rounded_.data(), row);
}

int64_t RefMemory::bytes() const {
  size_t elements = 0;
  for (const auto& buffer : floats_) elements += buffer.size();
  for (const auto& buffer : ints_) elements += buffer.size();
  return static_cast<int64_t>(elements * sizeof(float));
}

MemoryNeeds RefMemory::needs(const Program& program, const CompileOptions& options) {
  MemoryNeeds needs{bytes_of(weights_in_file(program)),
                    cache_bytes(program, quant::Type::F32, options.cache_room()), 0};
  const std::vector<bool> used = used_storages(program);
  for (size_t i = 0; i < used.size(); ++i) {
    const Tensor& tensor = program.tensors()[i];
    if (tensor.kind != Kind::Activation || !used[i]) continue;
    needs.scratch_bytes += Program::rows(tensor, options.max_rows, options.max_outputs) * tensor.shape[1] *
                           tensor.shape[2] * static_cast<int64_t>(sizeof(float));
  }
  return needs;
}

// Half of a reference's time goes into this.
SLUICE_CLONES float ref_dot(const float* a, const float* b, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                            ((sums[4] + sums[5]) + (sums[6] + sums[7])));
}

}  // namespace sluice::program
