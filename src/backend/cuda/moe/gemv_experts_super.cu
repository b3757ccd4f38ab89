// Gated products of one row with routed experts of types of 256 columns.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::Q2_K>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q3_K>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q5_K>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q6_K>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::Q2_K>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q3_K>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q5_K>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q6_K>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
