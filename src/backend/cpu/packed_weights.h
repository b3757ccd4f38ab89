// The weights of an executable that its kernels multiply, packed at load (packed.h) into memory of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/packed.h"
#include "backend/cpu/pages.h"
#include "base/threads.h"
#include "program/backend.h"

namespace sluice::backend::cpu {

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
    pack(of_matrix, panel, into);
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
  /// Packs a panel of a matrix that lies in the file's order.
  void pack(const std::byte* of_matrix, int64_t panel, uint8_t* out) const;
};

/// How far ahead of the weights in use panels of a type are asked for, in bytes: into the first-level cache,
/// and up to four times as far into the second. Which distance is best is a matter of the machine
/// (docs/performance.md), so it is left open. Zen 4 asks for several rows' at least 2 KB ahead.
program::Variants ahead_variants(quant::Type type);

/// Bytes of the weights as an executable holds them: packed, and those in the file's order that its kernels
/// read whole. The token table is not among these: a step reads some rows of it.
int64_t held_weights_bytes(const program::Program& program, bool repack);

class PackFile;  // pack_file.h

class PackedWeights {
 public:
  /// Matrices that a kernel reads at once, each with a buffer of its own.
  static constexpr int kSlots = 2;

  /// Room for the weights of every op whose kernel reads panels, which load() fills; without `repack` for two
  /// panels a worker and slot. With a file (which outlives this) they are its panels. Throws Error when the
  /// system refuses the memory, or the file was packed otherwise.
  PackedWeights(const program::Program& program, const program::WeightBytes& weights,
                const MatmulKernels& kernels, const UnpackKernels* unpack, const TiledProducts* tiled,
                const program::Tuning& tuning, bool repack, int workers, const PackFile* file = nullptr);

  /// Packs, shared among the team; progress(bytes done, bytes in all) is called now and then by the calling
  /// thread, if it is there. The file's pages are given back to the system as they have been read: what a
  /// process holds, page cache included, grows by no more than what readers are ahead. What stays in the file
  /// (the token table, norms, routers) is asked for in the end.
  void load(Team& team, const std::function<void(int64_t, int64_t)>& progress);
  /// The same to other memory of bytes().
  void pack_into(std::byte* into, Team& team, const std::function<void(int64_t, int64_t)>& progress) const;
  /// What lies where, a line a weight: whoever has the same text can read the same bytes.
  std::string layout() const;

  bool holds(program::TensorId id) const { return offset_[static_cast<size_t>(id)] >= 0; }
  /// A row of a table [1, rows, columns], decoded: out of its panels where products read it too, and else out
  /// of the file. The same numbers; but the file's pages were given back when they were packed, and each new
  /// token's would come from the disk.
  void decode_row(program::TensorId id, int64_t row, float* out) const;
  Matrix matrix(program::TensorId id, int worker, int slot) const;
  int64_t bytes() const { return bytes_; }

 private:
  /// Packed matrices whose panels take turns, so that who reads them together reads one stream: a gate and
  /// its up; or one alone.
  struct Stream {
    std::vector<program::TensorId> ids;
    int64_t matrix_bytes, panel_stride;  // as of Matrix
  };

  /// Room for these weights, of as many matrices and rows each.
  void add(std::vector<program::TensorId> ids);
  Matrix in_file(program::TensorId id) const;

  const program::Program& program_;
  const program::WeightBytes& weights_;
  const MatmulKernels& kernels_;
  const UnpackKernels* unpack_;
  const TiledProducts* tiled_;
  std::vector<int32_t> ahead_;  // bytes, by TensorId
  bool repack_;
  int64_t buffer_bytes_ = 0;     // of two panels, the largest
  std::vector<int64_t> offset_;  // by TensorId; -1: not packed
  std::vector<size_t> stream_;   // by TensorId, of those that are packed
  std::vector<Stream> streams_;  // in the order of offset_
  int64_t bytes_ = 0;
  Pages pages_;
  const std::byte* panels_;  // in pages_, or a file's
};

}  // namespace sluice::backend::cpu
