// Products of one row at a time (products_kernel.cuh).
#include "backend/cuda/ops/products_kernel.cuh"

namespace sluice::backend::cuda::few_products {

template void start_products<1, 1>(const Context&, const LaunchShape&, const Args&);
template void start_products<1, 4>(const Context&, const LaunchShape&, const Args&);

}  // namespace sluice::backend::cuda::few_products
