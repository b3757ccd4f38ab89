// Products of wide steps by warpgroups (prim/tiles_wgmma.cuh) for one family of number formats.
#include "backend/cuda/prim/tiles_launch.cuh"

namespace sluice::backend::cuda {

template void launch_large<Family::Single>(const Product&, int64_t, const Context&);

}  // namespace sluice::backend::cuda
