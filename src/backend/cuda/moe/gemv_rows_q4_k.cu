// Gated products of two rows with routed experts of Q4_K, beside shared ones of finer types too.
#include "backend/cuda/moe/gemv_rows_kernel.cuh"

namespace sluice::backend::cuda {

template bool gemv_rows::launch_rows<Type::Q4_K>(const Context&, Type, const gemv_rows::Args&,
                                                 const LaunchShape&);

}  // namespace sluice::backend::cuda
