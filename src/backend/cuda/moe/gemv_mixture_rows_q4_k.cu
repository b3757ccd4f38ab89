// Mixtures of two rows with routed experts of Q4_K.
#include "backend/cuda/moe/gemv_mixture_rows_kernel.cuh"

namespace sluice::backend::cuda::mixture {

template bool launch_mixture<Type::Q4_K>(const Context&, Type, Type, Type, const RowsArgs&,
                                         const LaunchShape&);

}  // namespace sluice::backend::cuda::mixture
