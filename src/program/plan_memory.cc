// Activations live from their first writer to their last reader; a linear scan gives each the lowest free
// place.
#include <algorithm>
#include <limits>
#include <vector>

#include "program/op_info.h"
#include "program/program.h"

namespace sluice::program {
namespace {

constexpr int64_t kAlignBytes = 64;  // a cache line

struct Lifetime {
  TensorId id;
  int64_t bytes;
  int first, last;  // ops
  int64_t offset = -1;
};

std::vector<Lifetime> lifetimes(const Program& program, int64_t max_rows, int64_t max_outputs) {
  const int end = static_cast<int>(program.ops().size());
  std::vector<Lifetime> lives;
  std::vector<int> index(program.tensors().size(), -1);
  std::vector<bool> is_read(program.tensors().size(), false), is_written(is_read);
  for (int op = 0; op < static_cast<int>(program.ops().size()); ++op) {
    const Op& record = program.ops()[static_cast<size_t>(op)];
    info(record).operands(record, [&](const char*, TensorId id, bool written) {
      const TensorId storage = program.storage(id);
      (written ? is_written : is_read)[static_cast<size_t>(storage)] = true;
      const Tensor& tensor = program[storage];
      if (tensor.kind != Kind::Activation) return;
      int& life = index[static_cast<size_t>(storage)];
      if (life < 0) {
        life = static_cast<int>(lives.size());
        const int64_t rows = Program::rows(tensor, max_rows, max_outputs);
        const int64_t bytes = rows * tensor.shape[1] * tensor.shape[2] * quant::type_info(tensor.type).bytes;
        lives.push_back({storage, (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes, op, op});
      }
      lives[static_cast<size_t>(life)].last = op;
    });
  }
  for (Lifetime& life : lives) {
    // Ids stay whole for who counts after the step which experts it selected; they are a few hundred bytes.
    if (program[life.id].type == quant::Type::I32) life.last = end;
    if (!is_written[static_cast<size_t>(life.id)]) life.first = 0;
    if (!is_read[static_cast<size_t>(life.id)] || life.id == program.hidden_out()) life.last = end;
  }
  std::stable_sort(lives.begin(), lives.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return lives;
}

/// The lowest offset at which `bytes` fit between the lives that are still in use.
int64_t lowest_gap(std::vector<const Lifetime*>& in_use, int64_t bytes) {
  std::sort(in_use.begin(), in_use.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  int64_t offset = 0;
  for (const Lifetime* life : in_use) {
    if (life->offset - offset >= bytes) break;
    offset = std::max(offset, life->offset + life->bytes);
  }
  return offset;
}

}  // namespace

int64_t cache_bytes(const Tensor& cache, quant::Type type, const CacheRoom& room) {
  const int64_t rows = cache.shape[0] * cache.shape[1];
  quant::CacheRow row = cache.cache_row();
  row.type = type;
  const bool paged = cache.kind == Kind::Cache;
  const int64_t one =
      paged ? rows * row.bytes() : quant::bytes_of(quant::type_info(cache.type), rows * cache.columns());
  int64_t bytes = 0;
  const bool too_many = __builtin_mul_overflow(one, paged ? room.pages : room.state_slots, &bytes);
  return too_many ? std::numeric_limits<int64_t>::max() : bytes;
}

int64_t cache_bytes(const Tensor& cache, const CacheRoom& room) {
  return cache_bytes(cache, cache.type, room);
}

namespace {

/// The sum of what `bytes_of` says of every cache.
template <typename F>
int64_t sum_of_caches(const Program& program, F bytes_of) {
  int64_t sum = 0;
  for (const TensorId id : program.caches()) {
    if (__builtin_add_overflow(sum, bytes_of(program[id]), &sum)) return std::numeric_limits<int64_t>::max();
  }
  return sum;
}

}  // namespace

int64_t cache_bytes(const Program& program, const CacheRoom& room) {
  return sum_of_caches(program, [&](const Tensor& cache) { return cache_bytes(cache, room); });
}

int64_t cache_bytes(const Program& program, quant::Type type, const CacheRoom& room) {
  return sum_of_caches(program, [&](const Tensor& cache) { return cache_bytes(cache, type, room); });
}

MemoryPlan plan_memory(const Program& program, int64_t max_rows, int64_t max_outputs, int window,
                       const std::vector<bool>& all_wait_after) {
  MemoryPlan plan;
  // The last op during which a buffer has to stay that was read last by an op.
  const auto stays_until = [&](int op) {
    for (int last = op; last < op + window; ++last) {
      if (static_cast<size_t>(last) < all_wait_after.size() && all_wait_after[static_cast<size_t>(last)])
        return last;
    }
    return op + window;
  };
  plan.offset_bytes.assign(program.tensors().size(), -1);
  std::vector<Lifetime> lives = lifetimes(program, max_rows, max_outputs);
  std::vector<const Lifetime*> in_use;
  for (Lifetime& life : lives) {
    std::erase_if(in_use, [&](const Lifetime* other) { return stays_until(other->last) < life.first; });
    life.offset = lowest_gap(in_use, life.bytes);
    in_use.push_back(&life);
    plan.offset_bytes[static_cast<size_t>(life.id)] = life.offset;
    plan.arena_bytes = std::max(plan.arena_bytes, life.offset + life.bytes);
  }
  return plan;
}

}  // namespace sluice::program
