// Products of steps of many rows (gemm/gemm_mma.cuh, gemm_stream.cuh) for one family of number formats.
#include "backend/cuda/gemm/gemm_instances.cuh"

namespace sluice::backend::cuda {

template void launch_tiles<Family::Points>(const Product&, int64_t, const Context&);
template void launch_stream<Family::Points>(const stream::Args&, const Context&);

}  // namespace sluice::backend::cuda
