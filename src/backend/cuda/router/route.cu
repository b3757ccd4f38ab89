// route: from router logits to experts and their weights, a warp a row.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/router/route.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

__global__ void __launch_bounds__(32)
    route(const Timestamps timestamps, StepView step, RouteRule rule, Rows<float> logits, const float* bias,
          Rows<int32_t> ids, Rows<float> weights) {
  __shared__ float shared[2 * kMostRouted];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.x;
  if (row >= step.header->rows) return;
  for (int e = threadIdx.x; e < rule.experts; e += 32) shared[e] = __ldcg(logits(row) + e);
  __syncwarp();
  route_warp(rule, shared, shared + kMostRouted, bias, ids(row), weights(row));
}

void launch_route(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<Route>(record.args);
  const Memory& memory = context.memory;
  launch(context, route,
         LaunchShape{dim3(static_cast<unsigned>(context.rows(program[op.logits.id]))), dim3(32)},
         context.step, route_rule(op, program[op.logits.id].columns(), program[op.ids.id].columns()),
         memory.rows(op.logits.id), memory.vector(op.bias.id), memory.int_rows(op.ids.id),
         memory.rows(op.weights.id));
}

bool serves_route(const Program& program, const Op& record, const Sizes&) {
  return program[std::get<Route>(record.args).logits.id].columns() <= kMostRouted;
}

}  // namespace

const Kernel kRoute{"route", serves_route, launch_route};

}  // namespace sluice::backend::cuda
