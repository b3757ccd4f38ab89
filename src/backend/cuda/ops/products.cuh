// matmul, matmul_add, norm_matmul for few rows: what the files of their kernel share. It
// (products_kernel.cuh) is compiled for numbers of rows by several files, so that none takes a compiler long.
#pragma once

#include "backend/cuda/kernel.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda::few_products {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMostParts = 3;

/// One weight and where its products go.
struct Part {
  Matrix weight;
  float* out;        // [rows][weight.rows]
  const float* add;  // the same shape, or null
  int64_t out_stride, add_stride;
  int lanes, tasks;  // lanes a weight row; a task is a warp's: 32 / lanes weight rows
};

struct Args {
  StepView step;
  Part parts[kMostParts];
  int count, tasks;
  const float* in;
  int64_t in_stride;
  const float* norm;
  float epsilon;
  int columns;
  bool bytes, floats, by_outputs, one_row;
};

/// Starts the kernel of kRows rows of activations at a time and kOut weight rows of a lane.
template <int kRows, int kOut>
void start_products(const Context& context, const LaunchShape& shape, const Args& args);

}  // namespace sluice::backend::cuda::few_products
