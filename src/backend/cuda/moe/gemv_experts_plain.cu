// Gated products of one row with routed experts of types of 32 columns.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::Q4_1>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q5_0>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q5_1>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::Q8_0>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::Q4_1>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q5_0>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q5_1>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::Q8_0>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
