#include "backend/cuda/memory.h"

#include <limits>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/format.h"
#include "backend/cuda/upload.h"
#include "base/check.h"
#include "program/op_info.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t numbers(const Tensor& tensor) { return tensor.shape[0] * tensor.shape[1] * tensor.shape[2]; }

PlaneBytes planes_of(const Tensor& tensor) {
  const PlaneBytes bytes = plane_bytes(tensor.type, numbers(tensor));
  return {aligned(bytes.codes), aligned(bytes.high), aligned(bytes.scale), aligned(bytes.super)};
}

int64_t packed_bytes(const Tensor& tensor) {
  const PlaneBytes bytes = planes_of(tensor);
  return bytes.codes + bytes.high + bytes.scale + bytes.super;
}

Planes place(const Tensor& tensor, char* base) {
  const PlaneBytes bytes = planes_of(tensor);
  auto* at = reinterpret_cast<uint8_t*>(base);
  return {at, at + bytes.codes, at + bytes.codes + bytes.high, at + bytes.codes + bytes.high + bytes.scale};
}

/// Weights that some op reads: by the tensor that stores them, whether any op reads them.
std::vector<bool> used_weights(const Program& program) {
  std::vector<bool> used(program.tensors().size(), false);
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind == Kind::Weight) used[static_cast<size_t>(program.storage(id))] = true;
    });
  }
  return used;
}

bool is_vector(const Tensor& tensor) { return tensor.shape[0] == 1 && tensor.shape[1] == 1; }

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes > 0) allocate_device(data_, bytes);
}
Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}

Memory::Memory(const Program& program, const WeightBytes& weights, const CompileOptions& options,
               int64_t scratch_bytes, int expansion_length)
    : program_(program),
      plan_(plan_memory(program, options.max_rows, options.max_outputs, expansion_length)) {
  if (options.bind_only) return;
  arena_ = Buffer(plan_.arena_bytes);
  // Values that no op has written show.
  if (plan_.arena_bytes > 0) check(cudaMemset(arena_.data(), 0xff, static_cast<size_t>(plan_.arena_bytes)));
  cache_ = Buffer(program::cache_bytes(program, options.cache_pages));
  if (cache_.bytes() > 0) check(cudaMemset(cache_.data(), 0, static_cast<size_t>(cache_.bytes())));
  scratch_ = Buffer(scratch_bytes);
  packed_.resize(program.tensors().size());
  std::vector<Upload> uploads;
  const std::vector<bool> used = used_weights(program);
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const Tensor& tensor = program.tensors()[i];
    const std::span<const std::byte> bytes = weights[i];
    CHECK(!bytes.empty(), "{}", tensor.name);
    packed_[i] = Buffer(packed_bytes(tensor));
    uploads.push_back({tensor.type, bytes, place(tensor, packed_[i].data())});
    if (!is_vector(tensor)) continue;
    std::vector<float> values(static_cast<size_t>(tensor.columns()));
    quant::type_info(tensor.type).decode(bytes.data(), values.data(), tensor.columns());
    Buffer& vector = vectors_[static_cast<TensorId>(i)] = Buffer(tensor.columns() * 4);
    check(cudaMemcpy(vector.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  }
  upload(uploads, {});
  check(cudaDeviceSynchronize());
}

Matrix Memory::matrix(TensorId id) const {
  const Tensor& tensor = program_[id];
  const TensorId storage = program_.storage(id);
  const Tensor& whole = program_[storage];
  const Buffer& buffer = packed_[static_cast<size_t>(storage)];
  const Planes planes = place(whole, buffer.data());
  const int64_t columns = tensor.columns();
  return {planes.codes,
          planes.high,
          planes.scale,
          planes.super,
          tensor.type,
          static_cast<int32_t>(tensor.shape[0]),
          static_cast<int32_t>(tensor.shape[1]),
          static_cast<int32_t>(columns),
          tensor.offset / columns,
          tensor.stride[0] / columns};
}

const float* Memory::vector(TensorId id) const {
  if (id == kNoTensor) return nullptr;
  const auto found = vectors_.find(id);
  CHECK(found != vectors_.end(), "{}", program_[id].name);
  return reinterpret_cast<const float*>(found->second.data());
}

template <typename T>
Rows<T> Memory::view(TensorId id) const {
  const Tensor& tensor = program_[id];
  const int64_t offset = plan_.offset_bytes[static_cast<size_t>(program_.storage(id))];
  CHECK(offset >= 0, "{}", tensor.name);
  return {reinterpret_cast<T*>(arena_.data() + offset) + tensor.offset, tensor.stride[0], tensor.stride[1],
          static_cast<int32_t>(tensor.heads()), static_cast<int32_t>(tensor.columns())};
}
template Rows<float> Memory::view<float>(TensorId id) const;
template Rows<int32_t> Memory::view<int32_t>(TensorId id) const;

Cache Memory::cache() const {
  const Tensor& tensor = program_[program_.cache()];
  const quant::CacheRow row = tensor.cache_row();
  const bool coded = row.type == quant::Type::Q8_0;
  return {cache_.data(),
          static_cast<int32_t>(tensor.shape[0]),
          static_cast<int32_t>(row.columns),
          static_cast<int32_t>(row.bytes()),
          coded ? static_cast<int32_t>(row.coded()) : 0,
          coded ? static_cast<int32_t>(row.exact_at()) : 0,
          coded ? static_cast<int32_t>(row.scales_at()) : 0};
}

int64_t Memory::bytes() const { return arena_.bytes() + cache_.bytes() + scratch_.bytes(); }

MemoryNeeds Memory::needs(const Program& program, const CompileOptions& options, int64_t scratch_bytes,
                          int expansion_length) {
  MemoryNeeds needs;
  const std::vector<bool> used = used_weights(program);
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) needs.weights_bytes += packed_bytes(program.tensors()[i]);
  }
  needs.cache_bytes = program::cache_bytes(program, options.cache_pages);
  needs.scratch_bytes =
      plan_memory(program, options.max_rows, options.max_outputs, expansion_length).arena_bytes +
      scratch_bytes;
  return needs;
}

}  // namespace sluice::backend::cuda
