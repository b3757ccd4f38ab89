// norm_mla_heads of one row over a short context, for weights of any other types.
#include "backend/cuda/attention/norm_mla_heads_ctx512.cuh"

namespace sluice::backend::cuda::first_half {

template void start_ctx512<AnyRaw, AnyRaw, AnyRaw, AnyRaw>(const Args&, const Context&);

}  // namespace sluice::backend::cuda::first_half
