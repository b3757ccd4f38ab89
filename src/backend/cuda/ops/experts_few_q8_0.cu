// Experts with few tokens each, of Q8_0 (experts_few.cu).
#include "backend/cuda/ops/experts_kept.cuh"

namespace sluice::backend::cuda::experts {

template void start_experts<quant::Type::Q8_0>(const ExpertsLaunch&, const Args&, const Context&);
template void start_kept<quant::Type::Q8_0>(const KeptArgs&, const SelectAndShared*, const Context&);

}  // namespace sluice::backend::cuda::experts
