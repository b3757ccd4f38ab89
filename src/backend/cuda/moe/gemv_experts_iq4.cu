// Gated products of one row with routed experts of IQ4_NL and IQ4_XS, the latter beside shared ones of finer
// types too.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::IQ4_NL>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::IQ4_XS>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::IQ4_NL>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ4_XS>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
