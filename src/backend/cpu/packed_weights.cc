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
#include "base/check.h"
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
  return amd && product_of(kernels, quant::Type::Q4_0).pair != nullptr;
}

/// How products read a weight that lies in the file.
Matrix in_file(const Weight& file, const WeightKernels& kernels) {
  const quant::Type type = file.type;
  const bool pairs = takes_pairs(kernels.products);
  const auto ahead = static_cast<int32_t>(program::tuned(kernels.tuning, ahead_variants(type)));
  return {type,
          file.data,
          file.matrix_bytes,
          panel_bytes(type, file.columns),
          file.row_bytes,
          panel_bytes(type, file.columns),
          file.matrices,
          file.rows,
          file.columns,
          takes_quantized(type),
          product_of(kernels.products, type).panel,
          product_of(kernels.products, type).file,
          pairs ? product_of(kernels.products, type).pair : nullptr,
          pairs ? nullptr : product_of(kernels.products, type).many,
          kernels.products.many_from,
          product_of(kernels.products, type).numbers,
          panel_unpack(kernels.unpack, type),
          tiled_product(kernels.tiled, type),
          tiled_from(type),
          to_both_caches(ahead),
          to_both_caches(ahead_of_several(ahead)),
          file_ahead(),
          nullptr};
}

}  // namespace

Weight weight_in_file(const program::Source& source, TensorId id) {
  const program::Program& program = source.program;
  const Tensor& t = program[id];
  const quant::TypeInfo& type = quant::type_info(t.type);
  const std::byte* base = source.weights[static_cast<size_t>(program.storage(id))].data();
  return {t.type,
          base + bytes_of(type, t.offset),
          bytes_of(type, t.stride[0]),
          bytes_of(type, t.stride[1]),
          t.shape[0],
          t.shape[1],
          t.columns()};
}

program::Variants ahead_variants(quant::Type type) {
  return {fmt::format("panels.ahead_bytes.{}", quant::type_info(type).name),
          builtin_ahead(type),
          {0, 256, 512, 768, 1024, 2048, 4096, 8192}};
}

std::vector<program::PackedWeight> held_weights(const program::Program& program, bool repack) {
  std::set<TensorId> packed, in_file;
  for (const Op& op : program.ops()) {
    if (std::holds_alternative<program::Embed>(op.args)) continue;
    program::info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind != Kind::Weight) return;
      repack&& reads_panels(program, op, id) ? packed.insert(id) : in_file.insert(program.storage(id));
    });
  }
  std::vector<program::PackedWeight> list;
  for (const TensorId id : packed)
    list.push_back(
        {id, fmt::format("panels of {} rows", kPanelRows), program[id].shape[0] * matrix_bytes(program[id])});
  for (const TensorId id : in_file) {
    const auto& [matrices, rows, columns] = program[id].shape;
    list.push_back({id, "as in the file",
                    quant::bytes_of(quant::type_info(program[id].type), matrices * rows * columns)});
  }
  return list;
}

PackedWeights::PackedWeights(std::span<const program::Source> sources, bool repack,
                             std::shared_ptr<const PackFile> file)
    : repack_(repack),
      pack_file_(std::move(file)),
      pages_(
          [&] {
            for (const program::Source& source : sources) add_all(source);
            return pack_file_ == nullptr ? bytes_ : 0;
          }(),
          Pages::Size::Huge),
      panels_(pack_file_ == nullptr ? pages_.data() : pack_file_->panels(layout(), bytes_)) {
  if (repack) return;
  for (const program::Source& source : sources) read_in_huge_pages(source.weights);
}

void PackedWeights::add_all(const program::Source& source) {
  const program::Program& program = source.program;
  std::vector<bool> panels(program.tensors().size());
  for (const Op& op : program.ops()) {
    if (!repack_ || !bind(program, op)->panels) continue;
    if (const auto* gated = std::get_if<program::GateUp>(&op.args)) {
      add(source, {gated->gate.id, gated->up.id});
    } else if (const auto* experts = std::get_if<program::MoeGateUp>(&op.args)) {
      add(source, {experts->gate.id, experts->up.id});
      if (experts->shared_gate) add(source, {experts->shared_gate.id, experts->shared_up.id});
    }
    program::info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (!reads_panels(program, op, id)) return;
      add(source, {id});
      panels[static_cast<size_t>(id)] = true;
    });
  }
  for (const Op& op : program.ops()) {
    program::info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind == Kind::Weight && !panels[static_cast<size_t>(id)])
        stay_.push_back(source.weights[static_cast<size_t>(program.storage(id))]);
    });
  }
}

void PackedWeights::add(const program::Source& source, const std::vector<TensorId>& ids) {
  std::vector<Weight> weights;
  weights.reserve(ids.size());
  for (const TensorId id : ids) weights.push_back(weight_in_file(source, id));
  if (std::ranges::any_of(weights, [this](const Weight& weight) { return places_.contains(weight); })) return;
  Stream stream{};
  for (size_t i = 0; i < ids.size(); ++i) {
    const Tensor& t = source.program[ids[i]];
    places_[weights[i]] = {streams_.size(), i};
    stream.entries.push_back(
        {weights[i], fmt::format("{} {} {}", t.name, quant::type_info(t.type).name, fmt::join(t.shape, "x")),
         fmt::format("from {} of {}, strides {}", t.offset,
                     source.program[source.program.storage(ids[i])].name, fmt::join(t.stride, " ")),
         bytes_ + stream.panel_stride, source.program[source.program.storage(ids[i])].streamed});
    stream.matrix_bytes += matrix_bytes(t);
    stream.panel_stride += panel_bytes(t.type, t.columns());
  }
  bytes_ += weights.front().matrices * stream.matrix_bytes;
  streams_.push_back(std::move(stream));
}

std::optional<PackedWeights::Place> PackedWeights::find(const Weight& weight) const {
  const auto found = places_.find(weight);
  if (found == places_.end()) return std::nullopt;
  const Stream& stream = streams_[found->second.stream];
  return Place{panels_ + stream.entries[found->second.entry].offset, stream.matrix_bytes,
               stream.panel_stride};
}

void PackedWeights::load(Team& team, const program::Progress& progress) {
  if (repack_ && pack_file_ == nullptr) {
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
  for (const std::span<const std::byte> bytes : stay_) bring_pages(bytes);
}

void PackedWeights::pack_into(std::byte* into, Team& team, const program::Progress& progress) const {
  std::atomic<int64_t> done{0};
  Consumed consumed;
  team.run([&](int worker) {
    // A part of the file leaves memory together with its neighbours, which are other workers' to read: if one
    // ran ahead by itself, what it has read would stay.
    int64_t since_meeting = 0;
    for (const Stream& stream : streams_) {
      const Weight& any = stream.entries.front().file;
      const int64_t panels = (any.rows + kPanelRows - 1) / kPanelRows;
      const int64_t chunk = std::max<int64_t>(1, kChunkBytes / stream.panel_stride);
      const Slice mine = slice_of(any.matrices * panels, worker, team.size());
      for (int64_t item = mine.first; item < mine.last;) {
        // Some panels of one matrix.
        const int64_t m = item / panels, first = item % panels;
        const int64_t last = std::min({first + chunk, panels, first + mine.last - item});
        for (const Entry& entry : stream.entries) {
          const Weight& from = entry.file;
          std::byte* to = into + entry.offset + m * stream.matrix_bytes;
          for (int64_t p = first; p < last; ++p) {
            const int64_t row = p * kPanelRows;
            pack_panel(from.type, from.row(m, row), from.row_bytes,
                       std::min<int64_t>(kPanelRows, from.rows - row), from.columns,
                       reinterpret_cast<uint8_t*>(to + p * stream.panel_stride));
          }
          if (entry.stays) continue;
          // Of a part of a weight's columns, no more than what lies between its first and its last.
          const int64_t row = first * kPanelRows, end = std::min(last * kPanelRows, from.rows);
          consumed.add({from.row(m, row), static_cast<size_t>(from.row(m, end - 1) - from.row(m, row)) +
                                              static_cast<size_t>(from.bytes_of_row())});
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
  consumed.finish();
  if (progress) progress(bytes_, bytes_);
}

void PackedWeights::replace(const Weight& weight, int64_t m, std::span<const std::byte> bytes) const {
  const auto found = places_.find(weight);
  CHECK(found != places_.end() && repack_ && pack_file_ == nullptr, "a weight that was not packed here");
  const Stream& stream = streams_[found->second.stream];
  std::byte* const to = pages_.data() + stream.entries[found->second.entry].offset + m * stream.matrix_bytes;
  const int64_t row_bytes = weight.bytes_of_row();
  for (int64_t row = 0; row < weight.rows; row += kPanelRows) {
    pack_panel(weight.type, bytes.data() + row * row_bytes, row_bytes,
               std::min<int64_t>(kPanelRows, weight.rows - row), weight.columns,
               reinterpret_cast<uint8_t*>(to + row / kPanelRows * stream.panel_stride));
  }
}

std::string PackedWeights::layout() const {
  std::string text = fmt::format("panels of {} rows, version {}\n", kPanelRows, kPackedVersion);
  for (const Stream& stream : streams_) {
    for (const Entry& entry : stream.entries)
      text += fmt::format("{} at {}, panels {} apart, {}\n", entry.what, entry.offset, stream.panel_stride,
                          entry.from);
  }
  return text + fmt::format("{} bytes\n", bytes_);
}

WeightTable::WeightTable(const program::Source& source, const PackedWeights& packed,
                         const WeightKernels& kernels, int workers)
    : source_(source),
      matrices_(source.program.tensors().size()),
      buffers_(
          [&] {
            for (const Op& op : source.program.ops()) {
              program::info(op).operands(op, [&](const char*, TensorId id, bool) {
                if (reads_panels(source.program, op, id)) add(id, packed, kernels);
              });
            }
            return workers * kSlots * buffer_bytes_;
          }(),
          Pages::Size::Huge) {}

void WeightTable::add(TensorId id, const PackedWeights& packed, const WeightKernels& kernels) {
  std::optional<Matrix>& matrix = matrices_[static_cast<size_t>(id)];
  if (matrix) return;
  const Weight file = weight_in_file(source_, id);
  matrix = in_file(file, kernels);
  if (const auto place = packed.find(file)) {
    matrix->data = place->data;
    matrix->matrix_bytes = place->matrix_bytes;
    matrix->panel_stride = place->panel_stride;
  } else {
    CHECK(!packed.repacks(), "{}: the weights were loaded for other programs", source_.program[id].name);
    buffer_bytes_ = std::max(buffer_bytes_, round_up(2 * matrix->panel_bytes, kLine));
  }
}

void WeightTable::decode_row(TensorId id, int64_t row, float* out) const {
  if (buffer_bytes_ > 0 || !holds(id)) return weight_in_file(source_, id).decode_row(0, row, out);
  const Matrix& matrix = *matrices_[static_cast<size_t>(id)];
  decode_packed_row(matrix.type, matrix.panel(0, row / kPanelRows), row % kPanelRows, matrix.columns, out);
}

}  // namespace sluice::backend::cpu
