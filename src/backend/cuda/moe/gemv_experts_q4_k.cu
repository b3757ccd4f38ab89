// Gated products of one row with routed experts of Q4_K, beside shared ones of finer types too.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::Q4_K>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::Q4_K>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
