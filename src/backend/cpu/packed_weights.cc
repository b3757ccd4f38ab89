#include "backend/cpu/packed_weights.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <variant>

#include "backend/cpu/kernel.h"
#include "base/cpu_info.h"
#include "base/error.h"
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

void Matrix::pack(const std::byte* of_matrix, int64_t panel, uint8_t* out) const {
  const int64_t row = panel * kPanelRows;
  pack_panel(type, of_matrix + row * row_bytes, row_bytes, std::min<int64_t>(kPanelRows, rows - row), columns,
             out);
}

program::Variants ahead_variants(quant::Type type) {
  // Zen 4 was measured to be quickest when left alone: it is asked for the line that is read next.
  static const bool amd = cpu_name().find("AMD") != std::string::npos;
  return {fmt::format("panels.ahead_bytes.{}", quant::type_info(type).name),
          amd ? 0 : 768,
          {0, 256, 512, 768, 1024, 2048}};
}

int64_t held_weights_bytes(const program::Program& program, bool repack) {
  std::set<TensorId> packed, in_file;
  for (const Op& op : program.ops()) {
    if (std::holds_alternative<program::Embed>(op.args)) continue;
    const bool panels = repack && bind(program, op)->panels;
    program::info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind == Kind::Weight) panels ? packed.insert(id) : in_file.insert(program.storage(id));
    });
  }
  int64_t bytes = 0;
  for (const TensorId id : packed) bytes += program[id].shape[0] * matrix_bytes(program[id]);
  for (const TensorId id : in_file) {
    const auto& [matrices, rows, columns] = program[id].shape;
    bytes += quant::bytes_of(quant::type_info(program[id].type), matrices * rows * columns);
  }
  return bytes;
}

PackedWeights::PackedWeights(const program::Program& program, const program::WeightBytes& weights,
                             const MatmulKernels& kernels, const TileKernels* tiles,
                             const program::Tuning& tuning, bool repack, int workers)
    : program_(program),
      weights_(weights),
      kernels_(kernels),
      tiles_(tiles),
      prefetch_([&] {
        std::vector<Prefetch> list;
        for (const Tensor& tensor : program.tensors()) {
          const auto ahead = static_cast<int32_t>(program::tuned(tuning, ahead_variants(tensor.type)));
          list.push_back({4 * ahead, ahead});
        }
        return list;
      }()),
      repack_(repack),
      offset_(program.tensors().size(), -1),
      pages_(
          [&] {
            for (const Op& op : program.ops()) {
              if (!bind(program, op)->panels) continue;
              program::info(op).operands(op, [&](const char*, TensorId id, bool) {
                if (program[id].kind == Kind::Weight && !holds(id)) add(id);
              });
            }
            if (!repack) bytes_ = workers * kSlots * buffer_bytes_;
            return bytes_;
          }(),
          Pages::Size::Huge) {}

void PackedWeights::add(TensorId id) {
  const Tensor& t = program_[id];
  offset_[static_cast<size_t>(id)] = bytes_;
  ids_.push_back(id);
  bytes_ += t.shape[0] * matrix_bytes(t);
  buffer_bytes_ = std::max(buffer_bytes_, round_up(2 * panel_bytes(t.type, t.columns()), kLine));
}

Matrix PackedWeights::in_file(TensorId id) const {
  const Tensor& t = program_[id];
  const quant::TypeInfo& type = quant::type_info(t.type);
  const std::byte* base = weights_[static_cast<size_t>(program_.storage(id))].data();
  return {t.type,
          base + bytes_of(type, t.offset),
          bytes_of(type, t.stride[0]),
          panel_bytes(t.type, t.columns()),
          bytes_of(type, t.stride[1]),
          t.shape[0],
          t.shape[1],
          t.columns(),
          takes_quantized(t.type),
          panel_product(kernels_, t.type),
          panel_unpack(tiles_, t.type),
          prefetch_[static_cast<size_t>(id)],
          nullptr};
}

Matrix PackedWeights::matrix(TensorId id, int worker, int slot) const {
  Matrix matrix = in_file(id);
  if (repack_) {
    matrix.data = pages_.data() + offset_[static_cast<size_t>(id)];
    matrix.matrix_bytes = matrix_bytes(program_[id]);
  } else {
    matrix.buffer = reinterpret_cast<uint8_t*>(pages_.data()) + (worker * kSlots + slot) * buffer_bytes_;
  }
  return matrix;
}

void PackedWeights::load(Team& team, const std::function<void(int64_t, int64_t)>& progress) {
  if (!repack_) return;
  const int64_t available = available_memory_bytes();  // 0: cannot be told
  if (available > 0 && bytes_ > available) {
    fail(
        "the packed weights need {:.1f} GB of memory, {:.1f} GB are available; --no-repack runs from the "
        "file",
        static_cast<double>(bytes_) * 1e-9, static_cast<double>(available) * 1e-9);
  }
  const bool short_of_memory = available < 2 * bytes_;
  std::atomic<int64_t> done{0};
  team.run([&](int worker) {
    for (const TensorId id : ids_) {
      const Matrix from = in_file(id);
      std::byte* to = pages_.data() + offset_[static_cast<size_t>(id)];
      const int64_t to_stride = matrix_bytes(program_[id]), panels = from.panels();
      const int64_t chunk = std::max<int64_t>(1, kChunkBytes / from.panel_bytes);
      const Slice mine = slice_of(from.matrices * panels, worker, team.size());
      for (int64_t item = mine.first; item < mine.last;) {
        // Some panels of one matrix.
        const int64_t m = item / panels, first = item % panels;
        const int64_t last = std::min({first + chunk, panels, first + mine.last - item});
        const std::byte* rows = from.data + m * from.matrix_bytes;
        for (int64_t p = first; p < last; ++p) {
          from.pack(rows, p, reinterpret_cast<uint8_t*>(to + m * to_stride + p * from.panel_bytes));
        }
        if (short_of_memory) {
          const int64_t panel_of_file = kPanelRows * from.row_bytes,
                        end = std::min(last * kPanelRows, from.rows);
          give_back(rows + first * panel_of_file, end * from.row_bytes - first * panel_of_file);
        }
        item += last - first;
        done += (last - first) * from.panel_bytes;
        if (worker == 0 && progress) progress(done, bytes_);
      }
    }
  });
  if (progress) progress(bytes_, bytes_);
}

}  // namespace sluice::backend::cpu
