// Products of wide steps (prim/tiles_mma.cuh) for one family of number formats.
#include "backend/cuda/prim/tiles_launch.cuh"

namespace sluice::backend::cuda {

template void launch_tiles<Family::Bfloat>(const Product&, int64_t, const Context&);

}  // namespace sluice::backend::cuda
