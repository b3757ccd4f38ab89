// norm_mla_heads of one row over a short context, for weights of Q4_K, and k_b of what stands for it.
#include "backend/cuda/attention/norm_mla_heads_ctx512.cuh"

namespace sluice::backend::cuda::first_half {

using FourK = TypedRaw<quant::Type::Q4_K>;
using Five = TypedRaw<quant::Type::Q5_0>;

template void start_ctx512<FourK, FourK, Five, FourK>(const Args&, const Context&);

}  // namespace sluice::backend::cuda::first_half
