// The weights of a model in panels (packed.h), packed at load into memory of their own and shared by all that
// is compiled over them; and how a program's products read them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/packed.h"
#include "backend/cpu/pages.h"
#include "base/threads.h"
#include "program/backend.h"

namespace sluice::backend::cpu {

/// A weight in the file's order: row n of matrix m begins at data + m * matrix_bytes + n * row_bytes.
struct Weight {
  quant::Type type;
  const std::byte* data;
  int64_t matrix_bytes, row_bytes;
  int64_t matrices, rows, columns;

  const std::byte* row(int64_t matrix, int64_t row) const {
    return data + matrix * matrix_bytes + row * row_bytes;
  }
  /// Of its own columns: rows of a part of a weight lie further apart.
  int64_t bytes_of_row() const { return quant::bytes_of(quant::type_info(type), columns); }
  void decode_row(int64_t matrix, int64_t row, float* out) const {
    quant::type_info(type).decode(this->row(matrix, row), out, columns);
  }
  auto operator<=>(const Weight&) const = default;
};

/// Where a program's weight lies in the file.
Weight weight_in_file(const program::Source& source, program::TensorId id);

/// A panel that products read: packed, or (packed is null) the rows of the file.
struct Panel {
  const uint8_t* packed;
  const std::byte* rows;
};

/// A weight as products read it: panel p of matrix m. Without repacking at load, a panel is packed when it is
/// asked for, into a buffer of the worker that asks: good until the next but one. For one activation row that
/// would be another way through memory, so a panel stays as it is for it.
struct Matrix {
  quant::Type type;
  const std::byte* data;                         // panels; with a buffer the file's rows
  int64_t matrix_bytes, panel_bytes, row_bytes;  // from one matrix to the next, of a panel, of a row
  int64_t panel_stride;                          // from one panel to the next
  int64_t matrices, rows, columns;
  bool quantized;  // products take QuantBlocks (else floats)
  PanelProduct product;
  FileProduct file_product;  // may be null
  PairProduct pair_product;  // may be null
  ManyProduct many_product;  // may be null
  int many_from;             // rows
  PanelNumbers numbers;      // may be null
  PanelUnpack unpack;        // for products of bf16; may be null
  TiledProduct on_tiles;     // while it is unpacked; may be null
  int tiled_from;            // rows
  /// Of one row's product, of several rows', and of the file's rows.
  Prefetch prefetch, several_prefetch, file_prefetch;
  uint8_t* buffer;

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  const uint8_t* panel(int64_t matrix, int64_t panel) const {
    const std::byte* of_matrix = data + matrix * matrix_bytes;
    if (buffer == nullptr) return reinterpret_cast<const uint8_t*>(of_matrix + panel * panel_stride);
    uint8_t* into = buffer + panel % 2 * panel_bytes;
    pack_panel(type, of_matrix + panel * kPanelRows * row_bytes, row_bytes,
               std::min<int64_t>(kPanelRows, rows - panel * kPanelRows), columns, into);
    return into;
  }
  /// The same for products with `count` activation rows.
  Panel open(int64_t matrix, int64_t p, int64_t count) const {
    const bool as_it_is =
        buffer != nullptr && file_product != nullptr && count == 1 && (p + 1) * kPanelRows <= rows;
    if (!as_it_is) return {panel(matrix, p), nullptr};
    return {nullptr, data + matrix * matrix_bytes + p * kPanelRows * row_bytes};
  }
  /// out = the panel times x[0] .. x[count - 1], count <= kTileRows. again: it was read a moment ago.
  void multiply(Panel panel, const void* const* x, int64_t count, float* out, bool again) const {
    if (panel.packed == nullptr)
      return file_product(panel.rows, row_bytes, columns, x[0], out, file_prefetch);
    product(panel.packed, columns, x, static_cast<int>(count), out, ahead(count, again));
  }
  /// The same for up to kManyRows rows, where there is a many_product.
  void multiply_many(Panel panel, const void* const* x, int64_t count, float* out, bool again) const {
    many_product(panel.packed, columns, x, static_cast<int>(count), out, ahead(count, again));
  }
  /// What is asked for beside products with `count` rows.
  Prefetch ahead(int64_t count, bool again) const {
    if (again) return kAskNothing;
    return count > 1 ? several_prefetch : prefetch;
  }
};

/// How far ahead of the weights in use panels of a type are asked for, in bytes: into the first-level cache,
/// and up to four times as far into the second. Which distance is best is a matter of the machine
/// (docs/performance.md), so it is left open. Zen 4 asks for several rows' at least 2 KB ahead.
program::Variants ahead_variants(quant::Type type);

/// The weights as they are held: packed, and those in the file's order that kernels read whole. The token
/// table is not among these: a step reads some rows of it.
std::vector<program::PackedWeight> held_weights(const program::Program& program, bool repack);

class PackFile;  // pack_file.h

class PackedWeights : public program::WeightSet {
 public:
  /// Where a weight's panels lie, in bytes: of its first matrix, from one matrix to the next, from one panel
  /// to the next.
  struct Place {
    const std::byte* data;
    int64_t matrix_bytes, panel_stride;
  };

  /// Room for the weights of every op whose kernel reads panels, of programs that are legal for this backend;
  /// load() fills it. Without `repack` they stay in the file. With a pack file they are its panels. Throws
  /// Error when the system refuses the memory, or the file was packed otherwise.
  PackedWeights(std::span<const program::Source> sources, bool repack,
                std::shared_ptr<const PackFile> file = nullptr);

  /// Packs, shared among the team. The file's pages are given back to the system as they have been read: what
  /// a process holds, page cache included, grows by no more than what readers are ahead. What stays in the
  /// file (the token table, norms, routers) is asked for in the end.
  void load(Team& team, const program::Progress& progress);
  /// The same to other memory of bytes().
  void pack_into(std::byte* into, Team& team, const program::Progress& progress) const;
  /// What lies where, a line a weight: whoever has the same text can read the same bytes.
  std::string layout() const;

  /// Packs a matrix anew, in place of matrix m of a weight that load() has packed: bytes, as a file has them.
  /// Nobody reads it meanwhile.
  void replace(const Weight& weight, int64_t m, std::span<const std::byte> bytes) const;

  bool repacks() const { return repack_; }
  /// The panels of a weight; null: it is read in the file's order.
  std::optional<Place> find(const Weight& weight) const;
  /// Of all panels.
  int64_t bytes() const override { return bytes_; }

 private:
  struct Entry {
    Weight file;
    std::string what, from;  ///< for layout(): type and shape, and of which tensor it is a view
    int64_t offset;          ///< of its panels in all of them
    bool stays = false;      ///< in the file, too: another device reads it there again and again
  };
  /// Packed matrices whose panels take turns, so that who reads them together reads one stream: a gate and
  /// its up; or one alone.
  struct Stream {
    std::vector<Entry> entries;
    int64_t matrix_bytes, panel_stride;
  };
  struct At {
    size_t stream, entry;
  };

  void add_all(const program::Source& source);
  /// Room for these weights, of as many matrices and rows each.
  void add(const program::Source& source, const std::vector<program::TensorId>& ids);

  bool repack_;
  std::vector<Stream> streams_;  // in the order of their panels
  std::map<Weight, At> places_;
  std::vector<std::span<const std::byte>> stay_;  // what is read in the file's order
  int64_t bytes_ = 0;
  std::shared_ptr<const PackFile> pack_file_;
  Pages pages_;
  const std::byte* panels_ = nullptr;  // in pages_, or a file's
};

/// The kernels of a tier that read weights, and what was measured best for them.
struct WeightKernels {
  const MatmulKernels& products;
  const UnpackKernels* unpack;  ///< may be null
  const TiledProducts* tiled;   ///< may be null
  const program::Tuning& tuning;
};

/// The weights of a program as its kernels read them: one entry each, made once.
class WeightTable {
 public:
  /// Matrices that a kernel reads at once, each with a buffer of its own.
  static constexpr int kSlots = 2;

  /// Of a program that is legal for this backend, and among those that `packed` was made for. Where weights
  /// stay in the file, with buffers of two panels a worker and slot.
  WeightTable(const program::Source& source, const PackedWeights& packed, const WeightKernels& kernels,
              int workers);

  /// Whether a kernel reads it as panels.
  bool holds(program::TensorId id) const { return matrices_[static_cast<size_t>(id)].has_value(); }
  Matrix matrix(program::TensorId id, int worker, int slot) const {
    Matrix matrix = *matrices_[static_cast<size_t>(id)];
    if (buffer_bytes_ > 0)
      matrix.buffer = reinterpret_cast<uint8_t*>(buffers_.data()) + (worker * kSlots + slot) * buffer_bytes_;
    return matrix;
  }
  /// A row of a table [1, rows, columns], decoded: out of its panels where products read it too, and else out
  /// of the file. The same numbers; but the file's pages were given back when they were packed, and each new
  /// token's would come from the disk.
  void decode_row(program::TensorId id, int64_t row, float* out) const;
  /// Of the buffers.
  int64_t bytes() const { return buffers_.bytes(); }

 private:
  void add(program::TensorId id, const PackedWeights& packed, const WeightKernels& kernels);

  program::Source source_;
  std::vector<std::optional<Matrix>> matrices_;  // by TensorId
  int64_t buffer_bytes_ = 0;                     // of two panels, the largest; 0: weights are packed
  Pages buffers_;
};

}  // namespace sluice::backend::cpu
