// Products of up to four rows at a time (products_kernel.cuh).
#include "backend/cuda/ops/products_kernel.cuh"

namespace sluice::backend::cuda::few_products {

template void start_products<2, 1>(const Context&, const LaunchShape&, const Args&);
template void start_products<4, 1>(const Context&, const LaunchShape&, const Args&);

}  // namespace sluice::backend::cuda::few_products
