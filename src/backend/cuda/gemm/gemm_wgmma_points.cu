// Products of steps of many rows by warpgroups (gemm/gemm_wgmma.cuh) for one family of number formats.
#include "backend/cuda/gemm/gemm_instances.cuh"

namespace sluice::backend::cuda {

template void launch_large<Family::Points>(const Product&, int64_t, const Context&);

}  // namespace sluice::backend::cuda
