// Forms: what a kernel produces for the one launched right behind it, beside its op's results, and that one
// consumes. Both declare it (Kernel::produces, Kernel::consumes); step_plan matches them and gives each form
// its buffer.
#pragma once

#include <cstdint>

#include "program/op.h"

namespace sluice::backend::cuda {

enum class Form : uint8_t {
  RowCodes,         ///< one row's values in codes of eight bits (prim/activations.cuh)
  RowsCodes,        ///< the same of 2 to 32 rows, 32 under a scale (gemv/head_matmul_small_batch.h)
  NormedCodes,      ///< 2 to 32 rows times the weights of the norm behind, in codes (gemv/norm_matmul_q8.h)
  ExpertOrder,      ///< a step's pairs in the order of their experts (gemm/gemm_ops.cu)
  SelectedExperts,  ///< a flagged slot a pair, there before the producer has ended
  RouterSums,       ///< products of the router behind with one or two rows (gemv/gemv.h)
  ExpertsSum,       ///< what the moe_down_add behind is for (moe/gemv_mixture.cuh)
};

/// Where a form lies.
enum class FormSpace : uint8_t {
  Memory,
  Flagged,  ///< slots of the mailbox, each with the producer's flag
  Zeroed,   ///< slots of the mailbox that are zero before: each pair of launches has its own
  Result,   ///< the consumer's own result: nothing is left for it to launch
};

struct FormInfo {
  const char* name;
  FormSpace space;
};
const FormInfo& form_info(Form form);

/// A form that a kernel produces or consumes.
struct FormSpec {
  Form form;
  program::TensorId value;  ///< of which tensor
  int64_t bytes;            ///< of the buffer; 0: what the other end says
};

/// Where a launch writes the form that it produces, or reads the one that it consumes.
struct FormBuffer {
  const program::Op* other;  ///< at the other end
  char* at;
  uint32_t launch;  ///< the producer's number
  char* clear;      ///< consumer, of Zeroed: what is to be zero again for a pair of launches behind; or null
  const FormBuffer* behind = nullptr;  ///< producer, of Result: what the consumer produces itself; or null
};

}  // namespace sluice::backend::cuda
