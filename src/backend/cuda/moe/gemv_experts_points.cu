// Gated products of one row with routed experts of types whose codes name points of a grid, and of NVFP4.
#include "backend/cuda/moe/gemv_gated_kernel.cuh"
#include "backend/cuda/moe/gemv_routed_kernel.cuh"

namespace sluice::backend::cuda {

template bool gated::launch_gated<Type::IQ2_XXS>(const Context&, Type, const gated::Args&,
                                                 const LaunchShape&);
template bool gated::launch_gated<Type::IQ2_XS>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::IQ2_S>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::IQ3_XXS>(const Context&, Type, const gated::Args&,
                                                 const LaunchShape&);
template bool gated::launch_gated<Type::IQ3_S>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::IQ1_S>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::IQ1_M>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool gated::launch_gated<Type::NVFP4>(const Context&, Type, const gated::Args&, const LaunchShape&);
template bool routed::launch_routed<Type::IQ2_XXS>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ2_XS>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ2_S>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ3_XXS>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ3_S>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ1_S>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::IQ1_M>(const Context&, Type, routed::Args, LaunchShape);
template bool routed::launch_routed<Type::NVFP4>(const Context&, Type, routed::Args, LaunchShape);

}  // namespace sluice::backend::cuda
