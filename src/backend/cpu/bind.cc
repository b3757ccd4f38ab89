// Op and types -> kernel. Pure, so that it can be printed and tested; nothing is chosen during a step.
#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/packed.h"
#include "program/op_info.h"
#include "program/program.h"
#include "quant/cache_row.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

struct Bind {
  const Kernel* operator()(const Embed&) const { return &kEmbed; }
  const Kernel* operator()(const RmsNorm&) const { return &kRmsNorm; }
  const Kernel* operator()(const Matmul&) const { return &kMatmul; }
  const Kernel* operator()(const MatmulAdd& op) const { return op.bias ? nullptr : &kMatmulAdd; }
  const Kernel* operator()(const HeadMatmul& op) const {
    return op.reduce == Reduce::Columns ? &kHeadMatmulColumns : &kHeadMatmulRows;
  }
  const Kernel* operator()(const Rope&) const { return &kRope; }
  const Kernel* operator()(const KvAppend&) const { return &kKvAppend; }
  const Kernel* operator()(const MlaAttend&) const { return &kMlaAttend; }
  const Kernel* operator()(const Attend&) const { return &kAttend; }
  const Kernel* operator()(const AttentionTemperature&) const { return &kAttentionTemperature; }
  const Kernel* operator()(const AddBias&) const { return &kAddBias; }
  const Kernel* operator()(const Route&) const { return &kRoute; }
  const Kernel* operator()(const SiluMul&) const { return &kSiluMul; }
  const Kernel* operator()(const Add&) const { return &kAdd; }
  const Kernel* operator()(const GatherRows&) const { return &kGatherRows; }
  const Kernel* operator()(const GateUp&) const { return &kGateUp; }
  const Kernel* operator()(const MoeGateUp&) const { return &kMoeGateUp; }
  const Kernel* operator()(const MoeDownAdd& op) const { return op.down_scale ? nullptr : &kMoeDownAdd; }
  const Kernel* operator()(const ExpertMatmul&) const { return &kExpertMatmul; }
  const Kernel* operator()(const ExpertCombine&) const { return &kExpertCombine; }
  const Kernel* operator()(const NormMatmul&) const { return nullptr; }
  const Kernel* operator()(const NormGateUp&) const { return nullptr; }
  const Kernel* operator()(const NormRoute&) const { return nullptr; }
  const Kernel* operator()(const NormMoeGateUp&) const { return nullptr; }
  const Kernel* operator()(const MlaQuery&) const { return nullptr; }
  const Kernel* operator()(const GqaQuery&) const { return nullptr; }
  const Kernel* operator()(const GqaAttend&) const { return nullptr; }
  const Kernel* operator()(const MlaValues& op) const {
    const bool panels = op.queries.reduce == Reduce::Columns && op.values.reduce == Reduce::Columns;
    return panels ? &kMlaValues : nullptr;
  }
  const Kernel* operator()(const Copy&) const { return &kCopy; }
  const Kernel* operator()(const AllReduce&) const { return &kAllReduce; }
  const Kernel* operator()(const AllGather&) const { return &kAllGather; }
  const Kernel* operator()(const MlaHeads&) const { return nullptr; }
  const Kernel* operator()(const NormMlaHeads&) const { return nullptr; }
  const Kernel* operator()(const CausalConv&) const { return &kCausalConv; }
  const Kernel* operator()(const ExpertBias&) const { return &kExpertBias; }
  const Kernel* operator()(const SigmoidMul&) const { return &kSigmoidMul; }
  const Kernel* operator()(const DeltaNet&) const { return nullptr; }
  const Kernel* operator()(const GatedNorm&) const { return nullptr; }
  const Kernel* operator()(const DeltaRule&) const { return &kDeltaRule; }
  const Kernel* operator()(const Scale&) const { return &kScale; }
};

/// Whether every weight of the op can be packed and decoded, and the cache written.
bool types_known(const Program& program, const Op& op) {
  bool known = true;
  info(op).operands(op, [&](const char*, TensorId id, bool) {
    const Tensor& tensor = program[id];
    if (tensor.kind == Kind::Weight && !can_pack(tensor.type)) known = false;
    if (tensor.kind == Kind::Cache && !quant::is_cache_type(tensor.type)) known = false;
  });
  return known;
}

/// Whether a weight is added to products, or scales them, and is no matrix that makes them.
bool is_of_products(const Op& op, TensorId id) {
  if (const auto* experts = std::get_if<MoeGateUp>(&op.args))
    return id == experts->gate_bias.id || id == experts->up_bias.id || id == experts->gate_scale.id ||
           id == experts->up_scale.id;
  const auto* down = std::get_if<MoeDownAdd>(&op.args);
  return down != nullptr && id == down->down_bias.id;
}

}  // namespace

bool reads_panels(const Program& program, const Op& op, TensorId id) {
  const Kernel* kernel = bind(program, op);
  return kernel != nullptr && kernel->panels && program[id].kind == Kind::Weight && !is_of_products(op, id);
}

const Kernel* bind(const Program& program, const Op& op) {
  return types_known(program, op) ? std::visit(Bind{}, op.args) : nullptr;
}

}  // namespace sluice::backend::cpu
