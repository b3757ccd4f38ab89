// Products of eight rows at a time (products_kernel.cuh).
#include "backend/cuda/ops/products_kernel.cuh"

namespace sluice::backend::cuda::few_products {

template void start_products<8, 1>(const Context&, const LaunchShape&, const Args&);

}  // namespace sluice::backend::cuda::few_products
