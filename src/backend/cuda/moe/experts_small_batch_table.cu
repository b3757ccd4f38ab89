// Experts with few tokens each, of types whose codes are places in a table (experts_small_batch.cu).
#include "backend/cuda/moe/experts_resident.cuh"

namespace sluice::backend::cuda::experts {

template void start_experts<quant::Type::IQ4_NL>(const ExpertsLaunch&, const Args&, const Context&);
template void start_resident<quant::Type::IQ4_NL>(const ResidentArgs&, const SelectAndShared*,
                                                  const Context&);
template void start_experts<quant::Type::IQ4_XS>(const ExpertsLaunch&, const Args&, const Context&);
template void start_resident<quant::Type::IQ4_XS>(const ResidentArgs&, const SelectAndShared*,
                                                  const Context&);
template void start_experts<quant::Type::MXFP4>(const ExpertsLaunch&, const Args&, const Context&);
template void start_resident<quant::Type::MXFP4>(const ResidentArgs&, const SelectAndShared*, const Context&);

}  // namespace sluice::backend::cuda::experts
