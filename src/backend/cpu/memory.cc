#include "backend/cpu/memory.h"

#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/kernel.h"
#include "base/check.h"

namespace sluice::backend::cpu {

using program::Tensor;
using program::TensorId;

namespace {

/// Ops that a buffer stays untouched after its last reader: reusing it at once would cost a barrier
/// (barriers.h).
constexpr int kWindow = 4;

program::MemoryPlan plan_of(const program::Program& program, int64_t max_rows, int64_t max_outputs) {
  std::vector<bool> all_wait_after;
  for (const program::Op& op : program.ops())
    all_wait_after.push_back(bind(program, op)->share == Share::Together);
  return program::plan_memory(program, max_rows, max_outputs, kWindow, all_wait_after);
}

/// A worker's scratch has pages of its own.
int64_t worker_bytes(int64_t scratch_floats) {
  return (scratch_floats * static_cast<int64_t>(sizeof(float)) + 4095) / 4096 * 4096;
}

}  // namespace

program::MemoryNeeds memory_needs(const program::Program& program, const program::CompileOptions& options,
                                  int workers, int64_t scratch_floats, bool repack) {
  const auto arena_bytes = [&](int64_t rows) {
    return rows > 0 ? plan_of(program, rows, std::min(rows, options.max_outputs)).arena_bytes : 0;
  };
  return {program::bytes_of(held_weights(program, repack)),
          program::cache_bytes(program, options.cache_room()),
          arena_bytes(options.max_rows) + arena_bytes(options.aside_rows) +
              worker_bytes(scratch_floats) * workers};
}

Memory::Memory(const program::Program& program, const program::WeightBytes& weights, const WeightTable& table,
               const MatmulKernels& kernels, const program::CompileOptions& options, int workers,
               int64_t scratch_floats, std::vector<bool> bf16_caches, std::vector<int64_t> rounded_from,
               const Memory* caches_of)
    : program_(program),
      weights_(weights),
      table_(table),
      kernels_(kernels),
      max_outputs_(options.max_outputs),
      plan_(plan_of(program, options.max_rows, options.max_outputs)),
      scratch_bytes_(worker_bytes(scratch_floats)),
      cache_pages_(options.cache_pages),
      bf16_caches_(std::move(bf16_caches)),
      batch_invariant_(options.batch_invariant),
      rounded_from_(std::move(rounded_from)),
      arena_(plan_.arena_bytes, Pages::Size::Huge),
      shared_(std::make_shared<Shared>(program, weights, options, scratch_bytes_ * workers, caches_of)),
      borrows_caches_(caches_of != nullptr) {}

Memory::Shared::Shared(const program::Program& program, const program::WeightBytes& weights,
                       const program::CompileOptions& options, int64_t scratch_bytes, const Memory* caches_of)
    : frequencies(program, weights), scratch(scratch_bytes, Pages::Size::Huge) {
  if (caches_of != nullptr) {
    caches = caches_of->shared_->caches;
    CHECK(caches->size() == program.caches().size() && caches_of->cache_pages_ == options.cache_pages,
          "caches of another program");
    return;
  }
  caches = std::make_shared<std::deque<Pages>>();
  for (const TensorId id : program.caches())
    caches->emplace_back(program::cache_bytes(program[id], options.cache_room()), Pages::Size::Huge);
}

Memory::Memory(const Memory& other, int64_t rows)
    : program_(other.program_),
      weights_(other.weights_),
      table_(other.table_),
      kernels_(other.kernels_),
      max_outputs_(std::min(rows, other.max_outputs_)),
      plan_(plan_of(program_, rows, max_outputs_)),
      scratch_bytes_(other.scratch_bytes_),
      cache_pages_(other.cache_pages_),
      bf16_caches_(other.bf16_caches_),
      batch_invariant_(other.batch_invariant_),
      rounded_from_(other.rounded_from_),
      arena_(plan_.arena_bytes, Pages::Size::Huge),
      shared_(other.shared_) {}

Rows<float> Memory::rows(TensorId id) const {
  const Tensor& t = program_[id];
  std::byte* base = arena_.data() + plan_.offset_bytes[static_cast<size_t>(program_.storage(id))];
  return {reinterpret_cast<float*>(base) + t.offset, t.stride[0], t.stride[1], t.heads(), t.columns()};
}

Rows<int32_t> Memory::int_rows(TensorId id) const {
  const Rows<float> as_floats = rows(id);
  return {reinterpret_cast<int32_t*>(as_floats.data), as_floats.row_stride, as_floats.head_stride,
          as_floats.heads, as_floats.columns};
}

uint16_t* Memory::rounded(TensorId id, int64_t rows) const {
  if (rows < rounded_from(id)) return nullptr;
  return reinterpret_cast<uint16_t*>(this->rows(id).data);
}

Cache Memory::cache(TensorId id) const {
  const Tensor& t = program_[id];
  quant::CacheRow format = t.cache_row();
  if (format.type == quant::Type::F16 && bf16_caches_[program_.cache_index(id)])
    format.type = quant::Type::BF16;
  return {pages_of(id).data(), t.shape[0], cache_pages_, format.bytes(), format};
}

State Memory::state(TensorId id) const {
  const auto& [layers, rows, columns] = program_[id].shape;
  return {reinterpret_cast<float*>(pages_of(id).data()), layers, rows, columns};
}

void Memory::visit_kept(program::Kept what, int32_t index, const program::HostCopier::Visit& visit) const {
  for (const TensorId id : program_.caches()) {
    if (what == program::Kept::Page && program_[id].kind == program::Kind::Cache) {
      const Cache cache = this->cache(id);
      for (int64_t layer = 0; layer < cache.layers; ++layer)
        visit({cache.row(layer, int64_t{index} * program::kPageRows),
               static_cast<size_t>(program::kPageRows * cache.row_bytes)});
    } else if (what == program::Kept::State && program_[id].kind == program::Kind::State) {
      const State state = this->state(id);
      visit(std::as_writable_bytes(
          std::span(state.row(0, index, 0), static_cast<size_t>(state.layers * state.rows * state.columns))));
    }
  }
}

float* Memory::scratch(int worker) const {
  return reinterpret_cast<float*>(shared_->scratch.data() + worker * scratch_bytes_);
}

}  // namespace sluice::backend::cpu
