#include "backend/cuda/host/bind.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "backend/cuda/host/collectives.h"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/stream_weights.h"
#include "base/check.h"
#include "base/error.h"
#include "program/builder.h"
#include "program/op_info.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Kernels of an op in the order in which they are asked.
using Choices = std::initializer_list<const Kernel*>;

struct Bind {
  const Program& program;
  const Op& op;
  const Sizes& sizes;

  const Kernel* first(Choices choices) const {
    for (const Kernel* kernel : choices) {
      if (kernel->serves(program, op, sizes)) return kernel;
    }
    return nullptr;
  }
  const Kernel* operator()(const Embed&) const { return first({&kEmbed}); }
  const Kernel* operator()(const RmsNorm&) const { return first({&kRmsNorm}); }
  const Kernel* operator()(const Matmul&) const { return first({&kMatmulF32, &kMatmulGemm, &kMatmul}); }
  const Kernel* operator()(const MatmulAdd&) const { return first({&kMatmulAddGemm, &kMatmulAdd}); }
  const Kernel* operator()(const HeadMatmul&) const {
    return first({&kHeadMatmulSmallBatch, &kHeadMatmulGemm, &kHeadMatmulColumns, &kHeadMatmulRows});
  }
  const Kernel* operator()(const Rope&) const { return first({&kRope}); }
  const Kernel* operator()(const KvAppend&) const { return first({&kKvAppend}); }
  const Kernel* operator()(const MlaAttend&) const {
    return first({&kMlaAttendSm90, &kMlaAttendSm80, &kMlaAttend});
  }
  const Kernel* operator()(const Attend&) const { return first({&kAttendGqa, &kAttend}); }
  const Kernel* operator()(const Route&) const { return first({&kRoute}); }
  const Kernel* operator()(const SiluMul&) const { return first({&kSiluMul}); }
  const Kernel* operator()(const Add&) const { return first({&kAdd}); }
  const Kernel* operator()(const AddBias&) const { return first({&kAddBias}); }
  const Kernel* operator()(const GatherRows&) const { return first({&kGatherRows}); }
  const Kernel* operator()(const GateUp&) const { return first({&kGateUpGemm, &kGateUp}); }
  // Experts with biases, scales or another activation, and routers with biases, have fewer kernels.
  const Kernel* operator()(const MoeGateUp& op) const {
    return op.is_plain() ? first({&kMoeGateUpGemm, &kMoeGateUp}) : first({&kMoeGateUpGemm});
  }
  const Kernel* operator()(const MoeDownAdd& op) const {
    if (op.down_scale) return nullptr;
    return op.down_bias ? first({&kMoeDownAddGemm, &kMoeDownAdd})
                        : first({&kMoeDownAddRows, &kMoeDownAddGemm, &kMoeDownAdd});
  }
  const Kernel* operator()(const ExpertMatmul&) const { return first({&kExpertMatmulGemm, &kExpertMatmul}); }
  const Kernel* operator()(const ExpertCombine&) const { return first({&kExpertCombine}); }
  const Kernel* operator()(const NormMatmul&) const {
    return first({&kNormMatmulSmallBatch, &kNormMatmulGemm, &kNormMatmul});
  }
  const Kernel* operator()(const NormGateUp&) const { return first({&kNormGateUpSmallBatch, &kNormGateUp}); }
  const Kernel* operator()(const NormRoute&) const { return first({&kNormRouteBatch, &kNormRoute}); }
  const Kernel* operator()(const NormMoeGateUp& op) const {
    const bool is_plain = !op.route.router_bias && op.experts.is_plain();
    return is_plain ? first({&kNormMoeGateUp, &kNormMoeGateUpRows, &kNormMoeGateUpSmallBatch})
                    : first({&kNormMoeGateUp});
  }
  const Kernel* operator()(const MlaValues&) const { return nullptr; }
  const Kernel* operator()(const GqaQuery&) const { return first({&kGqaQuery}); }
  const Kernel* operator()(const GqaAttend&) const { return first({&kGqaAttend}); }
  const Kernel* operator()(const MlaQuery&) const {
    return first({&kMlaQuerySmallBatch, &kMlaQueryGemm, &kMlaQuery});
  }
  const Kernel* operator()(const MlaHeads&) const {
    return first({&kMlaHeads, &kMlaHeadsSplitKv, &kMlaHeadsSm80, &kMlaHeadsSmallBatch, &kMlaHeadsPrefill});
  }
  const Kernel* operator()(const NormMlaHeads&) const { return first({&kNormMlaHeads}); }
  const Kernel* operator()(const AttentionTemperature&) const { return first({&kAttentionTemperature}); }
  const Kernel* operator()(const ExpertBias&) const { return first({&kExpertBias}); }
  const Kernel* operator()(const CausalConv&) const { return first({&kCausalConv}); }
  const Kernel* operator()(const SigmoidMul&) const { return first({&kSigmoidMul}); }
  const Kernel* operator()(const GatedNorm&) const { return first({&kGatedNorm}); }
  const Kernel* operator()(const DeltaRule&) const { return first({&kDeltaRuleChunked, &kDeltaRule}); }
  const Kernel* operator()(const Scale&) const { return first({&kScale}); }
  const Kernel* operator()(const DeltaNet&) const { return first({&kDeltaNet}); }
  // Ops across places are whoever's who runs several (Executable::run_part).
  const Kernel* operator()(const Copy&) const { return nullptr; }
  const Kernel* operator()(const AllReduce&) const { return nullptr; }
  const Kernel* operator()(const AllGather&) const { return nullptr; }
};

/// Whether kernels know the cache's type: in eight bits, whole runs, each a warp's.
bool cache_known(const quant::CacheRow& row) {
  return row.type == quant::Type::F16 ||
         (row.type == quant::Type::Q8_0 && row.coded() % quant::kCacheRun == 0);
}

/// Whether weights of the type can be packed: one that is neither among the formats nor made of floats would
/// be taken for the latter.
bool weight_known(quant::Type type) {
  const quant::TypeInfo& info = quant::type_info(type);
  return info.decode != nullptr && (info.block == 1 || find_format(type) != nullptr);
}

/// Whether every weight of the op can be packed, with all columns of its rows, and kernels know the cache's
/// type.
bool types_known(const Program& program, const Op& op) {
  bool known = true;
  info(op).operands(op, [&](const char*, TensorId id, bool) {
    const Tensor& tensor = program[id];
    if (tensor.kind == Kind::Weight && (!weight_known(tensor.type) || tensor.stride[1] != tensor.columns()))
      known = false;
    if (tensor.kind == Kind::Cache && !cache_known(tensor.cache_row())) known = false;
  });
  return known;
}

/// Refuses a cache that no kernel knows by the flag that asked for it: ops would not say why they are
/// lacking.
void check_cache(const Program& program) {
  for (const Tensor& tensor : program.tensors()) {
    if (tensor.kind != Kind::Cache || cache_known(tensor.cache_row())) continue;
    fail("--cache-type {}: the CUDA backend wants runs of {} columns of a row in eight bits, not {} columns",
         quant::type_info(tensor.type).name, quant::kCacheRun, tensor.cache_row().coded());
  }
}

std::vector<Sizes> all_sizes(const CompileOptions& options, const Sizes& device) {
  std::vector<Sizes> list;
  for (const int64_t rows : row_buckets(options)) {
    for (const int64_t context : context_buckets(longest_context(options)))
      list.push_back(device.of(rows, context));
  }
  return list;
}

class Binder {
 public:
  Binder(const Program& program, std::vector<Sizes> sizes) : sizes_(std::move(sizes)) {
    for (const Tensor& tensor : program.tensors()) tensors_.add(tensor);
    tensors_.set_output(program.output());
    tensors_.set_hidden_in(program.hidden_in());
    tensors_.set_hidden_out(program.hidden_out());
  }

  Node node(const Op& op) {
    Node node{op, {}};
    if (info(op).across_places) return node;  // whoever runs the places does it
    const auto served = [&](const Sizes& sizes) { return bind(tensors_, op, sizes) != nullptr; };
    if (std::all_of(sizes_.begin(), sizes_.end(), served)) return node;
    if (info(op).expand == nullptr) fail("the backend cuda lacks {}", tensors_.op_name(op));
    Program expansion;
    for (const Tensor& tensor : tensors_.tensors()) expansion.add(tensor);
    Builder builder(expansion);
    builder.set_layer(op.layer);
    builder.set_place(op.place);
    info(op).expand(builder, op);
    for (size_t i = tensors_.tensors().size(); i < expansion.tensors().size(); ++i)
      tensors_.add(expansion.tensors()[i]);
    for (const Op& simpler : expansion.ops()) node.expansion.push_back(this->node(simpler));
    return node;
  }
  /// Adds a node, or what it expands into where no sizes have a kernel for it.
  void add(Node node, std::vector<Node>& list) {
    const auto served = [&](const Sizes& sizes) { return bind(tensors_, node.op, sizes) != nullptr; };
    if (info(node.op).across_places || std::any_of(sizes_.begin(), sizes_.end(), served)) {
      list.push_back(std::move(node));
      return;
    }
    for (Node& simpler : node.expansion) add(std::move(simpler), list);
  }
  const Program& tensors() const { return tensors_; }

 private:
  std::vector<Sizes> sizes_;
  Program tensors_;
};

int add_leaves(const Node& node, Program& leaves) {
  if (node.expansion.empty()) {
    leaves.add(node.op);
    return 1;
  }
  int count = 0;
  for (const Node& simpler : node.expansion) count += add_leaves(simpler, leaves);
  return count;
}

/// Adds the kernels that a node runs as, in order.
void add_launches(const Program& program, const Node& node, size_t number, const Sizes& sizes,
                  const Collectives* collectives, StepPlan& plan) {
  if (info(node.op).across_places) {
    if (collectives != nullptr)
      plan.launches.push_back(
          {.op = &node.op, .kernel = collectives->kernel(program, node.op, sizes), .node = number});
    return;
  }
  if (const Kernel* kernel = bind(program, node.op, sizes)) {
    plan.launches.push_back({.op = &node.op, .kernel = kernel, .node = number});
    return;
  }
  CHECK(!node.expansion.empty(), "{} of {} rows: neither a kernel nor an expansion", program.op_name(node.op),
        sizes.rows);
  for (const Node& simpler : node.expansion) add_launches(program, simpler, number, sizes, collectives, plan);
}

StepPlan plan_of(const Bound& bound, const Sizes& sizes) {
  StepPlan plan;
  for (size_t i = 0; i < bound.nodes.size(); ++i) {
    plan.first.push_back(plan.launches.size());
    add_launches(bound.program, bound.nodes[i], i, sizes, bound.collectives, plan);
  }
  plan.first.push_back(plan.launches.size());
  match_forms(bound.program, sizes, plan);
  return plan;
}

}  // namespace

const Kernel* bind(const Program& program, const Op& op, const Sizes& sizes) {
  return types_known(program, op) ? std::visit(Bind{program, op, sizes}, op.args) : nullptr;
}

int products_of_halves(const Program& program, const Op& op, const Sizes& device) {
  const Kernel* kernel = bind(program, op, device.of(64, kPageRows));
  for (const Kernel* one :
       {&kMatmulGemm, &kMatmulAddGemm, &kHeadMatmulGemm, &kExpertMatmulGemm, &kMoeDownAddGemm}) {
    if (kernel == one) return 1;
  }
  return kernel == &kGateUpGemm || kernel == &kMoeGateUpGemm ? 2 : 0;
}

int64_t longest_context(const CompileOptions& options) {
  const int64_t held = options.cache_pages * kPageRows;
  return options.context > 0 ? std::min(options.context, held) : held;
}

std::vector<int64_t> row_buckets(const CompileOptions& options) {
  std::vector<int64_t> list;
  for (int64_t rows = 1; rows < options.max_rows && !options.batch_invariant; rows *= 2) list.push_back(rows);
  list.push_back(options.max_rows);
  return list;
}

std::vector<int64_t> context_buckets(int64_t longest) {
  std::vector<int64_t> list;
  // Close to each other where shared memory is as large as the bucket wants
  // (attention/norm_mla_heads_ctx8k.cu).
  for (const int64_t context : std::to_array<int64_t>({kCtx512, 1024, 2048, 3072, 4096, 8192}))
    if (context < longest) list.push_back(context);
  for (int64_t context = 4 * 8192; context < longest; context *= 4) list.push_back(context);
  list.push_back(longest);
  return list;
}

int64_t bucket_of(const std::vector<int64_t>& buckets, int64_t value) {
  const auto found = std::lower_bound(buckets.begin(), buckets.end(), value);
  CHECK(found != buckets.end(), "{}", value);
  return *found;
}

std::vector<Range> Bound::parts() const {
  if (collectives == nullptr) return launched_parts(program);
  return {{0, static_cast<int64_t>(program.ops().size())}};
}

Bound bind_all(const Program& program, const CompileOptions& options, const Sizes& device,
               const Collectives* collectives) {
  check_cache(program);
  Binder binder(program, all_sizes(options, device));
  Bound bound;
  bound.device = device;
  bound.collectives = collectives;
  for (const Op& op : program.ops()) binder.add(binder.node(op), bound.nodes);
  bound.program = bound.leaves = binder.tensors();
  for (const Node& node : bound.nodes) {
    bound.program.add(node.op);
    bound.longest_expansion = std::max(bound.longest_expansion, add_leaves(node, bound.leaves));
  }
  std::vector<std::pair<Sizes, StepPlan*>> plans;
  std::vector<StepPlan*> unsized;
  for (const Sizes& sizes : all_sizes(options, device)) {
    StepPlan& plan = bound.plans[{sizes.rows, sizes.longest}] = plan_of(bound, sizes);
    plans.emplace_back(sizes, &plan);
    unsized.push_back(&plan);
  }
  keep_same_pairs(unsized);
  bound.memory = place(bound.program, plans);
  return bound;
}

}  // namespace sluice::backend::cuda
