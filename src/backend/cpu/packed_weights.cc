#include "backend/cpu/packed_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "backend/cpu/kernel.h"
#include "base/cpu_info.h"
#include "program/op_info.h"

namespace sluice::backend::cpu {

using program::Kind;
using program::Op;
using program::Tensor;
using program::TensorId;

namespace {

constexpr int64_t kLine = 64;  // a matrix begins at a cache line
/// Source bytes that a worker packs at once: between two such chunks it reports and gives pages back.
constexpr int64_t kChunkBytes = 4 << 20;

int64_t round_up(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

int64_t matrix_bytes(const Tensor& t) {
  return round_up(packed_bytes(t.type, t.shape[1], t.shape[2]), kLine);
}

/// Gives the pages that lie wholly within these bytes back to the system: nothing is lost, a later reader
/// finds the file's numbers again.
void give_back(const std::byte* data, int64_t bytes) {
#if defined(MADV_PAGEOUT)
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const auto begin = round_up(reinterpret_cast<int64_t>(data), page);
  const auto end = (reinterpret_cast<int64_t>(data) + bytes) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address of a page
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), static_cast<size_t>(end - begin), MADV_PAGEOUT);
#endif
}

}  // namespace

PackedWeights::PackedWeights(const program::Program& program, const MatmulKernels& kernels)
    : program_(program),
      kernels_(kernels),
      offset_(program.tensors().size(), -1),
      pages_(
          [&] {
            for (const Op& op : program.ops()) {
              if (!bind(program, op)->panels) continue;
              program::info(op).operands(op, [&](const char*, TensorId id, bool) {
                if (program[id].kind == Kind::Weight && !holds(id)) add(id);
              });
            }
            return bytes_;
          }(),
          Pages::Size::Huge) {}

void PackedWeights::add(TensorId id) {
  offset_[static_cast<size_t>(id)] = bytes_;
  ids_.push_back(id);
  bytes_ += program_[id].shape[0] * matrix_bytes(program_[id]);
}

Matrix PackedWeights::matrix(TensorId id) const {
  const Tensor& t = program_[id];
  return {reinterpret_cast<const uint8_t*>(pages_.data()) + offset_[static_cast<size_t>(id)],
          matrix_bytes(t),
          panel_bytes(t.type, t.shape[2]),
          t.shape[0],
          t.shape[1],
          t.shape[2],
          takes_quantized(t.type),
          panel_product(kernels_, t.type)};
}

void PackedWeights::load(const program::WeightBytes& weights, Team& team,
                         const std::function<void(int64_t, int64_t)>& progress) {
  const bool short_of_memory = available_memory_bytes() < 2 * bytes_;
  std::atomic<int64_t> done{0};
  team.run([&](int worker) {
    for (const TensorId id : ids_) {
      const Tensor& t = program_[id];
      const quant::TypeInfo& type = quant::type_info(t.type);
      const std::byte* from =
          weights[static_cast<size_t>(program_.storage(id))].data() + bytes_of(type, t.offset);
      const int64_t row_bytes = bytes_of(type, t.stride[1]), stride = bytes_of(type, t.stride[0]);
      const Matrix to = matrix(id);
      const int64_t chunk = std::max<int64_t>(1, kChunkBytes / to.panel_bytes);
      const Slice mine = slice_of(to.matrices * to.panels(), worker, team.size());
      for (int64_t item = mine.first; item < mine.last;) {
        // Panels of one matrix.
        const int64_t m = item / to.panels(), first = item % to.panels();
        const int64_t last = std::min({first + chunk, to.panels(), first + mine.last - item});
        for (int64_t p = first; p < last; ++p) {
          const int64_t row = p * kPanelRows;
          pack_panel(t.type, from + m * stride + row * row_bytes, row_bytes,
                     std::min<int64_t>(kPanelRows, to.rows - row), to.columns,
                     const_cast<uint8_t*>(to.panel(m, p)));
        }
        item += last - first;
        if (short_of_memory) {
          give_back(from + m * stride + first * kPanelRows * row_bytes,
                    (last - first) * kPanelRows * row_bytes);
        }
        done += (last - first) * to.panel_bytes;
        if (worker == 0 && progress) progress(done, bytes_);
      }
    }
  });
  if (progress) progress(bytes_, bytes_);
}

}  // namespace sluice::backend::cpu
