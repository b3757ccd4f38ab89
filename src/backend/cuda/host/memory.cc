#include "backend/cuda/host/memory.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/residual.h"
#include "backend/cuda/host/stream_weights.h"
#include "backend/cuda/host/upload.h"
#include "base/check.h"
#include "program/op_info.h"

namespace sluice::backend::cuda {

using namespace program;

namespace {

/// Where nothing lies.
char* made_up() { return reinterpret_cast<char*>(uintptr_t{1} << 20); }

/// Before scratch, as many as a row of a step's activations has.
int64_t zeroes_bytes(const Program& program) {
  int64_t columns = 0;
  for (const Tensor& tensor : program.tensors()) {
    if (tensor.kind == Kind::Activation && tensor.shape[0] == kStepRows)
      columns = std::max(columns, tensor.heads() * tensor.columns());
  }
  constexpr int64_t kAlign = 256;
  return (columns * int64_t{sizeof(float)} + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

Memory::Memory(const Program& program, const WeightBytes& files, std::shared_ptr<const Weights> weights,
               const CompileOptions& options, int64_t scratch_bytes, int expansion_length,
               const Memory* caches_of)
    : program_(program),
      plan_(plan_memory(program, options.max_rows, options.max_outputs, expansion_length)),
      weights_(std::move(weights)),
      caches_(caches_of != nullptr ? caches_of->caches_ : std::make_shared<std::vector<Buffer>>()),
      borrows_caches_(caches_of != nullptr),
      arena_at_(made_up()),
      scratch_at_(made_up()) {
  const std::vector<bool> used = used_weights(program);
  places_.resize(used.size());
  if (weights_ == nullptr) {
    for (Weights::Place& place : places_) place = {made_up(), reinterpret_cast<float*>(made_up())};
    return;
  }
  arena_ = Buffer(plan_.arena_bytes);
  // Values that no op has written show.
  if (plan_.arena_bytes > 0) check(cudaMemset(arena_.data(), 0xff, static_cast<size_t>(plan_.arena_bytes)));
  CHECK(!borrows_caches_ || caches_->size() == program.caches().size(), "caches of another program");
  for (const TensorId id : program.caches()) {
    if (borrows_caches_) {
      CHECK((*caches_)[program.cache_index(id)].bytes() == cache_bytes(program[id], options.cache_room()),
            "{}: the other program's has another size", program[id].name);
      continue;
    }
    const Buffer& cache = caches_->emplace_back(cache_bytes(program[id], options.cache_room()));
    if (cache.bytes() > 0) check(cudaMemset(cache.data(), 0, static_cast<size_t>(cache.bytes())));
  }
  const int64_t zeroes = zeroes_bytes(program);
  scratch_ = Buffer(zeroes + scratch_bytes);
  if (zeroes > 0) check(cudaMemset(scratch_.data(), 0, static_cast<size_t>(zeroes)));
  arena_at_ = arena_.data(), scratch_at_ = scratch_.data() + zeroes;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) places_[i] = weights_->at(files[i].data());
  }
  check(cudaDeviceSynchronize());
}

Matrix Memory::matrix(TensorId id) const {
  const Tensor& tensor = program_[id];
  const TensorId storage = program_.storage(id);
  const Tensor& whole = program_[storage];
  const Planes planes = planes_at(whole, places_[static_cast<size_t>(storage)].planes);
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
  const float* vector = places_[static_cast<size_t>(id)].vector;
  CHECK(vector != nullptr, "{}", program_[id].name);
  return vector;
}

template <typename T>
Rows<T> Memory::view(TensorId id) const {
  const Tensor& tensor = program_[id];
  const int64_t offset = plan_.offset_bytes[static_cast<size_t>(program_.storage(id))];
  CHECK(offset >= 0, "{}", tensor.name);
  return {reinterpret_cast<T*>(arena_at_ + offset) + tensor.offset, tensor.stride[0], tensor.stride[1],
          static_cast<int32_t>(tensor.heads()), static_cast<int32_t>(tensor.columns())};
}
template Rows<float> Memory::view<float>(TensorId id) const;
template Rows<int32_t> Memory::view<int32_t>(TensorId id) const;

Rows<float> residual_rows(const Memory& memory, TensorId residual, TensorId out) {
  if (residual != kNoTensor) return memory.rows(residual);
  char* const zeroes = memory.scratch() - zeroes_bytes(memory.program());
  return {reinterpret_cast<float*>(zeroes), 0, 0, 1, static_cast<int32_t>(memory.program()[out].columns())};
}

Cache Memory::cache(TensorId id) const {
  const Tensor& tensor = program_[id];
  const quant::CacheRow row = tensor.cache_row();
  const bool coded = row.type == quant::Type::Q8_0;
  return {caches_->empty() ? made_up() : (*caches_)[program_.cache_index(id)].data(),
          static_cast<int32_t>(tensor.shape[0]),
          static_cast<int32_t>(row.columns),
          static_cast<int32_t>(row.bytes()),
          coded ? static_cast<int32_t>(row.coded()) : 0,
          coded ? static_cast<int32_t>(row.exact_at()) : 0,
          coded ? static_cast<int32_t>(row.scales_at()) : 0};
}

State Memory::state(TensorId id) const {
  const Tensor& tensor = program_[id];
  char* const data = caches_->empty() ? made_up() : (*caches_)[program_.cache_index(id)].data();
  return {reinterpret_cast<float*>(data), static_cast<int32_t>(tensor.shape[0]),
          static_cast<int32_t>(tensor.shape[1]), static_cast<int32_t>(tensor.columns())};
}

int64_t Memory::bytes() const {
  int64_t bytes = arena_.bytes() + scratch_.bytes();
  if (borrows_caches_) return bytes;
  for (const Buffer& cache : *caches_) bytes += cache.bytes();
  return bytes;
}

MemoryNeeds Memory::needs(const Program& program, const CompileOptions& options, int64_t scratch_bytes,
                          int expansion_length) {
  MemoryNeeds needs;
  needs.weights_bytes = bytes_of(Weights::held(program));
  if (const int64_t streamed = streamed_bytes(program); streamed > 0) {
    needs.weights_bytes += streamed;
    needs.scratch_bytes += WeightStream::device_bytes();
  }
  needs.cache_bytes = program::cache_bytes(program, options.cache_room());
  needs.scratch_bytes +=
      plan_memory(program, options.max_rows, options.max_outputs, expansion_length).arena_bytes +
      zeroes_bytes(program) + scratch_bytes;
  return needs;
}

}  // namespace sluice::backend::cuda
