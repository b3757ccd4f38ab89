// norm_mla_heads of one row over a short context, for weights where a and b are of Q4_0.
#include "backend/cuda/attention/norm_mla_heads_ctx512.cuh"

namespace sluice::backend::cuda::first_half {

using Four = TypedRaw<quant::Type::Q4_0>;
using Eight = TypedRaw<quant::Type::Q8_0>;

template void start_ctx512<Four, Four, Four, Four>(const Args&, const Context&);
template void start_ctx512<Four, Four, Eight, Eight>(const Args&, const Context&);

}  // namespace sluice::backend::cuda::first_half
