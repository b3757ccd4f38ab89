// Gated products of one row with routed experts of MXFP4, beside shared ones of finer types too.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::MXFP4>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::MXFP4>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
