#include "backend/cpu/packed_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <variant>

#include "backend/cpu/consumed.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel.h"
#include "backend/cpu/pack_file.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "base/file_cache.h"
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
constexpr int64_t kTogether = 16 << 20;  // packed bytes after which workers wait for each other

int64_t round_up(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

int64_t matrix_bytes(const Tensor& t) {
  return round_up(packed_bytes(t.type, t.shape[1], t.shape[2]), kLine);
}

/// Weights that follow each other in a file are one stretch, or its large pages would end with each of them.
void read_in_huge_pages(program::WeightBytes weights) {
  std::sort(weights.begin(), weights.end(), [](auto a, auto b) { return a.data() < b.data(); });
  constexpr int64_t kPadding = 4096;  // GGUF files align by less
  for (size_t i = 0; i < weights.size();) {
    const std::byte *begin = weights[i].data(), *end = begin + weights[i].size();
    while (++i < weights.size() && weights[i].data() - end < kPadding)
      end = std::max(end, weights[i].data() + weights[i].size());
    want_huge_pages(begin, static_cast<size_t>(end - begin));
  }
}

/// Into the second-level cache four times as far as into the first, but no further than this.
constexpr int32_t kMostFarBytes = 8192;
Prefetch to_both_caches(int32_t ahead) {
  return {std::max(ahead, std::min(4 * ahead, kMostFarBytes)), ahead};
}

/// As measured. Zen 4 is quickest when left alone: it is asked for the line that is read next. But it does
/// not see that blocks whose words are read out of order (the low bits and then the high ones) make a stream.
/// Zen 3, which has no AVX-512, and Zen 5 want to be asked always; Zen 5 from 6 to 24 KB ahead, two types
/// half as far into the first-level cache. Of Intel's, Sapphire Rapids and Emerald Rapids were measured;
/// those without AMX go by the latter.
int64_t builtin_ahead(quant::Type type) {
  static const int family = amd_family();
  static const bool emerald = is_emerald_rapids();
  static const bool wide = best_isa() >= Isa::Avx512;
  if (family == 0) return emerald || best_isa() == Isa::Avx512 ? 2048 : 768;
  if (family > 25) return type == quant::Type::Q5_K || type == quant::Type::Q6_K ? 4096 : 8192;
  if (wide) return type == quant::Type::Q3_K || type == quant::Type::Q6_K ? 2048 : 0;
  return quant::type_info(type).block > kQuantColumns ? 2048 : 256;
}

/// What products with several rows ask for, where those with one ask for `ahead`. Zen 4 reads ahead by itself
/// only as long as little is done between two lines, that is, for one row.
int32_t ahead_of_several(int32_t ahead) {
  static const bool zen4 = amd_family() == 25 && best_isa() >= Isa::Avx512;
  return zen4 ? std::max(ahead, 2048) : ahead;
}

/// Of rows of the file, beyond a panel. Two panels are more than most first-level caches hold, but Zen 5 is
/// quicker with the next one there, and Sapphire Rapids with its beginning.
Prefetch file_ahead() {
  static const Prefetch ahead = amd_family() > 25        ? Prefetch{-1, 4096}
                                : best_isa() == Isa::Amx ? Prefetch{3072, 768}
                                                         : Prefetch{8192, -1};
  return ahead;
}

/// Whether many rows take panels in pairs, where the tier has both, or share the unpacking of one: as
/// measured, too, on AMD's processors and on Intel's.
bool takes_pairs(const MatmulKernels& kernels) {
  static const bool amd = amd_family() != 0;
  return amd && kernels.q4_0.pair != nullptr;
}

}  // namespace

void Matrix::pack(const std::byte* of_matrix, int64_t panel, uint8_t* out) const {
  const int64_t row = panel * kPanelRows;
  pack_panel(type, of_matrix + row * row_bytes, row_bytes, std::min<int64_t>(kPanelRows, rows - row), columns,
             out);
}

program::Variants ahead_variants(quant::Type type) {
  return {fmt::format("panels.ahead_bytes.{}", quant::type_info(type).name),
          builtin_ahead(type),
          {0, 256, 512, 768, 1024, 2048, 4096, 8192}};
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
                             const MatmulKernels& kernels, const UnpackKernels* unpack,
                             const TiledProducts* tiled, const program::Tuning& tuning, bool repack,
                             int workers, const PackFile* file)
    : program_(program),
      weights_(weights),
      kernels_(kernels),
      unpack_(unpack),
      tiled_(tiled),
      ahead_([&] {
        std::vector<int32_t> list;
        for (const Tensor& tensor : program.tensors())
          list.push_back(static_cast<int32_t>(program::tuned(tuning, ahead_variants(tensor.type))));
        return list;
      }()),
      repack_(repack),
      offset_(program.tensors().size(), -1),
      stream_(program.tensors().size()),
      pages_(
          [&] {
            for (const Op& op : program.ops()) {
              if (!bind(program, op)->panels) continue;
              if (const auto* gated = std::get_if<program::GateUp>(&op.args)) {
                add({gated->gate.id, gated->up.id});
              } else if (const auto* experts = std::get_if<program::MoeGateUp>(&op.args)) {
                add({experts->gate.id, experts->up.id});
                if (experts->shared_gate) add({experts->shared_gate.id, experts->shared_up.id});
              }
              program::info(op).operands(op, [&](const char*, TensorId id, bool) {
                if (program[id].kind == Kind::Weight) add({id});
              });
            }
            if (!repack) bytes_ = workers * kSlots * buffer_bytes_;
            return file == nullptr ? bytes_ : 0;
          }(),
          Pages::Size::Huge),
      panels_(file == nullptr ? pages_.data() : file->panels(layout(), bytes_)) {
  if (!repack) read_in_huge_pages(weights);
}

void PackedWeights::add(std::vector<TensorId> ids) {
  if (std::any_of(ids.begin(), ids.end(), [this](TensorId id) { return holds(id); })) return;
  Stream stream{std::move(ids), 0, 0};
  for (const TensorId id : stream.ids) {
    const Tensor& t = program_[id];
    offset_[static_cast<size_t>(id)] = bytes_ + stream.panel_stride;
    stream_[static_cast<size_t>(id)] = streams_.size();
    stream.matrix_bytes += matrix_bytes(t);
    stream.panel_stride += panel_bytes(t.type, t.columns());
    buffer_bytes_ = std::max(buffer_bytes_, round_up(2 * panel_bytes(t.type, t.columns()), kLine));
  }
  bytes_ += program_[stream.ids.front()].shape[0] * stream.matrix_bytes;
  streams_.push_back(std::move(stream));
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
          panel_bytes(t.type, t.columns()),
          t.shape[0],
          t.shape[1],
          t.columns(),
          takes_quantized(t.type),
          panel_product(kernels_, t.type),
          file_product(kernels_, t.type),
          takes_pairs(kernels_) ? pair_product(kernels_, t.type) : nullptr,
          takes_pairs(kernels_) ? nullptr : many_product(kernels_, t.type),
          kernels_.many_from,
          panel_numbers(kernels_, t.type),
          panel_unpack(unpack_, t.type),
          tiled_product(tiled_, t.type),
          tiled_from(t.type),
          to_both_caches(ahead_[static_cast<size_t>(id)]),
          to_both_caches(ahead_of_several(ahead_[static_cast<size_t>(id)])),
          file_ahead(),
          nullptr};
}

Matrix PackedWeights::matrix(TensorId id, int worker, int slot) const {
  Matrix matrix = in_file(id);
  if (repack_) {
    const Stream& stream = streams_[stream_[static_cast<size_t>(id)]];
    matrix.data = panels_ + offset_[static_cast<size_t>(id)];
    matrix.matrix_bytes = stream.matrix_bytes;
    matrix.panel_stride = stream.panel_stride;
  } else {
    matrix.buffer = reinterpret_cast<uint8_t*>(pages_.data()) + (worker * kSlots + slot) * buffer_bytes_;
  }
  return matrix;
}

void PackedWeights::decode_row(TensorId id, int64_t row, float* out) const {
  if (repack_ && holds(id)) {
    const auto* panel = matrix(id, 0, 0).panel(0, row / kPanelRows);
    return decode_packed_row(program_[id].type, panel, row % kPanelRows, program_[id].columns(), out);
  }
  const Matrix rows = in_file(id);
  quant::type_info(rows.type).decode(rows.data + row * rows.row_bytes, out, rows.columns);
}

void PackedWeights::load(Team& team, const std::function<void(int64_t, int64_t)>& progress) {
  if (repack_ && panels_ == pages_.data()) {
    const int64_t available = available_memory_bytes();  // 0: cannot be told
    if (available > 0 && bytes_ > available) {
      fail(
          "the packed weights need {:.1f} GB of memory, {:.1f} GB are available; --no-repack runs from the "
          "file",
          static_cast<double>(bytes_) * 1e-9, static_cast<double>(available) * 1e-9);
    }
    pack_into(pages_.data(), team, progress);
  }
  // What stays in the file (the token table, norms, routers) may have left the page cache, above with the
  // parts around it. A step that met it missing would wait for the disk, which then reads some megabytes
  // around it.
  for (const Op& op : program_.ops()) {
    program::info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program_[id].kind != Kind::Weight || holds(id)) return;
      bring_pages(weights_[static_cast<size_t>(program_.storage(id))]);
    });
  }
}

void PackedWeights::pack_into(std::byte* into, Team& team,
                              const std::function<void(int64_t, int64_t)>& progress) const {
  std::atomic<int64_t> done{0};
  Consumed consumed;
  team.run([&](int worker) {
    // A part of the file leaves memory together with its neighbours, which are other workers' to read: if one
    // ran ahead by itself, what it has read would stay.
    int64_t since_meeting = 0;
    for (const Stream& stream : streams_) {
      const Matrix any = in_file(stream.ids.front());
      const int64_t panels = any.panels(), chunk = std::max<int64_t>(1, kChunkBytes / stream.panel_stride);
      const Slice mine = slice_of(any.matrices * panels, worker, team.size());
      for (int64_t item = mine.first; item < mine.last;) {
        // Some panels of one matrix.
        const int64_t m = item / panels, first = item % panels;
        const int64_t last = std::min({first + chunk, panels, first + mine.last - item});
        for (const TensorId id : stream.ids) {
          const Matrix from = in_file(id);
          const std::byte* rows = from.data + m * from.matrix_bytes;
          std::byte* to = into + offset_[static_cast<size_t>(id)] + m * stream.matrix_bytes;
          for (int64_t p = first; p < last; ++p)
            from.pack(rows, p, reinterpret_cast<uint8_t*>(to + p * stream.panel_stride));
          const int64_t row = first * kPanelRows, end = std::min(last * kPanelRows, from.rows);
          consumed.add({rows + row * from.row_bytes, static_cast<size_t>((end - row) * from.row_bytes)});
        }
        item += last - first;
        done += (last - first) * stream.panel_stride;
        if (worker == 0 && progress) progress(done, bytes_);
      }
      since_meeting += any.matrices * stream.matrix_bytes;
      if (since_meeting < kTogether) continue;
      team.barrier();
      since_meeting = 0;
    }
  });
  if (progress) progress(bytes_, bytes_);
}

std::string PackedWeights::layout() const {
  std::string text = fmt::format("panels of {} rows, version {}\n", kPanelRows, kPackedVersion);
  for (const Stream& stream : streams_) {
    for (const TensorId id : stream.ids) {
      const Tensor& t = program_[id];
      text += fmt::format("{} {} {} at {}, panels {} apart, from {} of {}, strides {}\n", t.name,
                          quant::type_info(t.type).name, fmt::join(t.shape, "x"),
                          offset_[static_cast<size_t>(id)], stream.panel_stride, t.offset,
                          program_[program_.storage(id)].name, fmt::join(t.stride, " "));
    }
  }
  return text + fmt::format("{} bytes\n", bytes_);
}

}  // namespace sluice::backend::cpu
