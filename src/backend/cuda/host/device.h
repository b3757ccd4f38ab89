// What kernels get of memory: plain structs of device pointers and sizes, the same for host and device. Knows
// no Program and no CUDA call.
#pragma once

#include <cstdint>

#include "program/tensor.h"
#include "quant/types.h"

#ifdef __CUDACC__
#define SLUICE_BOTH __host__ __device__
#else
#define SLUICE_BOTH
#endif

namespace sluice::backend::cuda {

/// A packed weight (host/format.h): row n of matrix m is the flat row first_row + m * matrix_rows + n. Planes
/// are those of the whole tensor, so that a view differs in its rows only.
struct Matrix {
  const uint8_t* codes;
  const uint8_t* high;
  const uint8_t* scale;
  const uint8_t* super;
  quant::Type type;
  int32_t matrices, rows, columns;
  int64_t first_row, matrix_rows;

  SLUICE_BOTH int64_t row(int64_t matrix, int64_t n) const { return first_row + matrix * matrix_rows + n; }
};

/// An activation: columns of heads of rows, float32 or int32.
template <typename T>
struct Rows {
  T* data;
  int64_t row_stride, head_stride;  ///< elements
  int32_t heads, columns;

  SLUICE_BOTH T* operator()(int64_t row, int64_t head = 0) const {
    return data + row * row_stride + head * head_stride;
  }
};

/// The cache: [page][layer][kPageRows] rows. A row is `coded` columns in eight bits, the others in binary16
/// (from byte exact_at on), and the scales of the first (quant/cache_row.h); all of it binary16: coded is 0.
struct Cache {
  char* data;
  int32_t layers, columns, row_bytes;
  int32_t coded, exact_at, scales_at;

  SLUICE_BOTH char* row(int64_t layer, int64_t slot) const {
    const int64_t page = slot / program::kPageRows, in_page = slot % program::kPageRows;
    return data + ((page * layers + layer) * program::kPageRows + in_page) * row_bytes;
  }
};

/// The states of sequences: [slot][layers][rows][columns].
struct State {
  float* data;
  int32_t layers, rows, columns;

  SLUICE_BOTH float* row(int64_t layer, int64_t slot, int64_t row) const {
    return data + ((slot * layers + layer) * rows + row) * columns;
  }
};

/// A step's rows [first, end) of one sequence, of a program that has states, and where its state lies.
struct Run {
  int32_t first, end, from, to;
};

/// Steps that may be in flight: what the host fills for a step, or reads of it, has a place for each.
inline constexpr int kStepSlots = 2;

/// Sizes of a step that vary within a captured graph.
struct StepHeader {
  int32_t rows, outputs, pages_per_sequence;
  uint32_t number;  ///< of the step, from 1 on
  int32_t runs;     ///< sequences that it has rows of; of a program without states 0
};

struct Prompts;
struct Segment;

/// A step's data (program/step.h) in device memory. Rows from header->rows on are padding: nothing may be
/// written for them.
struct StepView {
  const StepHeader* header;
  const int32_t *tokens, *positions, *sequences, *slots, *output_rows;
  const int32_t* page_tables;
  uint64_t* mailbox;        ///< slots by which blocks of a launch, and launches, pass numbers on (Mailbox)
  const Prompts* prompts;   ///< (host/prompts.h), of steps of many rows
  const Segment* segments;  ///< theirs
  const Run* runs;          ///< [header->runs], of a program that has states
  const int32_t* run_of;    ///< by row, likewise

  /// The slot of `position` of row r's sequence.
  SLUICE_BOTH int64_t slot_of(int64_t r, int64_t position) const {
    const int64_t page = position / program::kPageRows;
    return static_cast<int64_t>(page_tables[sequences[r] * int64_t{header->pages_per_sequence} + page]) *
               program::kPageRows +
           position % program::kPageRows;
  }
};

/// When a launch's blocks of one SM (or of some of them) ran, in nanoseconds of the device's clock.
struct Span {
  uint64_t not_begin;  ///< ~ of the first begin; zero: none ran there
  uint64_t end;        ///< the last warp's
};

/// Where a launch leaves its times (null: nobody asks for them), and when the one behind it may begin.
struct Timestamps {
  static constexpr int kSpans = 256;  ///< a power of two: spread so that few warps write to the same one
  Span* spans = nullptr;
  bool late = false;  ///< as this launch's blocks end; otherwise once all of them have begun
};

/// A mailbox: flagged slots by which the blocks of a launch pass numbers to each other while it runs. A slot
/// of 64 bits is a number and a flag, which no earlier launch or step wrote: so a number is there as soon as
/// its flag is, and nothing has to be reset.
struct Mailbox {
  uint64_t* slots;   ///< as many as Kernel::mailbox asks for, zero before the first step
  uint64_t* zeroed;  ///< likewise those without flags
  const StepHeader* header;
  uint32_t launch, launches;  ///< this launch of a step, and how many there are

  SLUICE_BOTH uint32_t flag() const { return header->number * launches + launch; }
};

}  // namespace sluice::backend::cuda
