// Experts with few tokens each, of Q6_K (experts_small_batch.cu).
#include "backend/cuda/moe/experts_resident.cuh"

namespace sluice::backend::cuda::experts {

template void start_experts<quant::Type::Q6_K>(const ExpertsLaunch&, const Args&, const Context&);
template void start_resident<quant::Type::Q6_K>(const ResidentArgs&, const SelectAndShared*, const Context&);

}  // namespace sluice::backend::cuda::experts
