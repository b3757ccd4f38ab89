// norm_mla_heads of one row over a short context, for weights of Q4_K and Q8_0.
#include "backend/cuda/attention/norm_mla_heads_ctx512.cuh"

namespace sluice::backend::cuda::first_half {

using FourK = TypedRaw<quant::Type::Q4_K>;
using Eight = TypedRaw<quant::Type::Q8_0>;

template void start_ctx512<FourK, FourK, Eight, Eight>(const Args&, const Context&);
template void start_ctx512<Eight, Eight, Eight, Eight>(const Args&, const Context&);

}  // namespace sluice::backend::cuda::first_half
