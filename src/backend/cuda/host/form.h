// Forms: what a kernel leaves for the one launched right behind it, beside its op's results. Both declare it
// (Kernel::gives, Kernel::takes); step_plan matches them and says where it lies.
#pragma once

#include <cstdint>

#include "program/op.h"

namespace sluice::backend::cuda {

enum class Form : uint8_t {
  RowCodes,         ///< one row's values in codes of eight bits (prim/activations.cuh)
  RowsCodes,        ///< the same of 2 to 32 rows, 32 under a scale (gemv/head_matmul_small_batch.h)
  NormedCodes,      ///< 2 to 32 rows times the weights of the norm behind, in codes (gemv/norm_matmul_q8.h)
  ExpertOrder,      ///< a step's pairs in the order of their experts (gemm/gemm_ops.cu)
  SelectedExperts,  ///< a word a pair, there before the giver has ended
  RouterSums,       ///< products of the router behind (gemv/gemv.h)
};

/// Where a form lies.
enum class FormSpace : uint8_t {
  Memory,
  Flagged,  ///< words of the board, each with the giver's tag
  Zeroed,   ///< words of the board that are zero before: each pair of launches has its own
};

struct FormInfo {
  const char* name;
  FormSpace space;
};
const FormInfo& form_info(Form form);

/// What a kernel gives or takes.
struct Handed {
  Form form;
  program::TensorId value;  ///< of which tensor
  int64_t bytes;            ///< that it takes; 0: what the other end says
};

/// A form that a launch gives or takes.
struct Handover {
  const program::Op* other;  ///< at the other end
  char* at;
  uint32_t launch;  ///< the giver's number
  char* clear;      ///< taker, of Zeroed: what is to be zero again for a pair of launches behind; or null
};

}  // namespace sluice::backend::cuda
