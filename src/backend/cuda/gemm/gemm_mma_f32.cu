// Products of steps of many rows (gemm/gemm_mma.cuh) for one family of number formats.
#include "backend/cuda/gemm/gemm_instances.cuh"

namespace sluice::backend::cuda {

template void launch_tiles<Family::F32>(const Product&, int64_t, const Context&);

}  // namespace sluice::backend::cuda
