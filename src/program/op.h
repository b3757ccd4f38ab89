// An op record: what is computed, from which tensors into which. Says what, never how or where.
// Each op is described once, in ops/<op>.{h,cc}: operands, shape check, cost, meaning, test cases.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "program/ops/add.h"
#include "program/ops/add_bias.h"
#include "program/ops/all_gather.h"
#include "program/ops/all_reduce.h"
#include "program/ops/attend.h"
#include "program/ops/attention_temperature.h"
#include "program/ops/causal_conv.h"
#include "program/ops/copy.h"
#include "program/ops/delta_net.h"
#include "program/ops/delta_rule.h"
#include "program/ops/embed.h"
#include "program/ops/expert_bias.h"
#include "program/ops/expert_combine.h"
#include "program/ops/expert_matmul.h"
#include "program/ops/gate_up.h"
#include "program/ops/gated_norm.h"
#include "program/ops/gather_rows.h"
#include "program/ops/gqa_attend.h"
#include "program/ops/gqa_query.h"
#include "program/ops/head_matmul.h"
#include "program/ops/kv_append.h"
#include "program/ops/matmul.h"
#include "program/ops/matmul_add.h"
#include "program/ops/mla_attend.h"
#include "program/ops/mla_heads.h"
#include "program/ops/mla_query.h"
#include "program/ops/mla_values.h"
#include "program/ops/moe_down_add.h"
#include "program/ops/moe_gate_up.h"
#include "program/ops/norm_gate_up.h"
#include "program/ops/norm_matmul.h"
#include "program/ops/norm_mla_heads.h"
#include "program/ops/norm_moe_gate_up.h"
#include "program/ops/norm_route.h"
#include "program/ops/rms_norm.h"
#include "program/ops/rope.h"
#include "program/ops/route.h"
#include "program/ops/scale.h"
#include "program/ops/sigmoid_mul.h"
#include "program/ops/silu_mul.h"

namespace sluice::program {

using OpKinds =
    std::variant<Embed, RmsNorm, Matmul, HeadMatmul, Rope, KvAppend, MlaAttend, Attend, Route, ExpertMatmul,
                 ExpertCombine, SiluMul, Add, AddBias, GatherRows, GateUp, MatmulAdd, MoeGateUp, MoeDownAdd,
                 NormMatmul, NormGateUp, NormRoute, NormMoeGateUp, MlaQuery, GqaQuery, GqaAttend, MlaValues,
                 MlaHeads, NormMlaHeads, CausalConv, Copy, AllReduce, AllGather, AttentionTemperature,
                 ExpertBias, SigmoidMul, GatedNorm, DeltaRule, DeltaNet, Scale>;

/// One of them. Whoever includes this copies ops, and what a variant makes of so many kinds to copy one is
/// much to compile: op.cc alone does.
struct OpArgs : OpKinds {
  using OpKinds::OpKinds;
  OpArgs(const OpArgs& other);
  OpArgs(OpArgs&& other) noexcept;
  OpArgs& operator=(const OpArgs& other);
  OpArgs& operator=(OpArgs&& other) noexcept;
  ~OpArgs();
};

struct Op {
  OpArgs args;
  int32_t layer = -1;  ///< the model's layer, -1 outside of layers; for names only
  int32_t place = 0;   ///< the device that runs it; of an op across places no one's
};

}  // namespace sluice::program
