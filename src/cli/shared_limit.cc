#include "cli/shared_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::cli {
namespace {

/// Scratch, graphs, and what the driver takes, of a GPU's memory.
constexpr int64_t kBeside = int64_t{1} << 30;

/// Bytes of the weights that a place's ops read, each once.
int64_t weight_bytes(const program::Program& side) {
  std::vector<bool> counted(side.tensors().size(), false);
  int64_t bytes = 0;
  for (const program::Op& op : side.ops()) {
    program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
      if (id == program::kNoTensor || side[id].kind != program::Kind::Weight) return;
      const program::TensorId storage = side.storage(id);
      if (counted[static_cast<size_t>(storage)]) return;
      counted[static_cast<size_t>(storage)] = true;
      const program::Tensor& weight = side[storage];
      bytes +=
          quant::bytes_of(quant::type_info(weight.type), weight.shape[0] * weight.shape[1] * weight.shape[2]);
    });
  }
  return bytes;
}

}  // namespace

SharedLimit shared_limit(const program::Program& cut, const program::StepShape& shape,
                         const SharedPeaks& peaks, double hit_rate) {
  SharedLimit limit;
  double alone = 0;         // of the GPU: what it computes while the CPU waits
  double cpu = 0, gpu = 0;  // of a mixture, beside each other
  double all_on_gpu = 0, overlapped = 0, routed_bytes = 0;
  bool is_shared = false;  // between the first op of the CPU and the return of its sum
  for (const program::Op& op : cut.ops()) {
    if (program::info(op).across_places) {
      if (!is_shared || op.place != 0) continue;
      overlapped += std::max(cpu, gpu);
      cpu = gpu = 0;
      is_shared = false;
      continue;
    }
    const program::Cost cost = program::info(op).cost(cut, op, shape);
    const double on_gpu = peaks.gpu.limit_seconds(cost);
    all_on_gpu += on_gpu;
    if (op.place == 0) {
      (is_shared ? gpu : alone) += on_gpu;
      limit.gpu_seconds += on_gpu;
      continue;
    }
    is_shared = true;
    const double misses = (1 - hit_rate) * peaks.cpu.limit_seconds(cost), hits = hit_rate * on_gpu;
    cpu += misses, gpu += hits;
    limit.cpu_seconds += misses, limit.gpu_seconds += hits;
    routed_bytes += cost.bytes_read;
  }
  limit.seconds = alone + overlapped;
  if (peaks.link_bytes_per_second <= 0) return limit;
  const double link = (1 - hit_rate) * routed_bytes / peaks.link_bytes_per_second;
  if (const double streamed = std::max(link, all_on_gpu); streamed < limit.seconds)
    limit = {streamed, all_on_gpu, 0, link, true};
  return limit;
}

std::string shared_text(const program::Program& cut, const SharedPeaks& peaks) {
  constexpr double kPrompt = 512;
  const double token = shared_limit(cut, {}, peaks, 0).seconds;
  const double prompt =
      shared_limit(cut, {.rows = kPrompt, .context = kPrompt / 2, .cache_rows = kPrompt}, peaks, 0).seconds;
  return fmt::format(
      "At most {:.0f} tokens/s of one sequence, {:.0f} of a prompt of {:.0f}: the GPU's memory reads {:.1f} "
      "GB/s, the CPU's {:.1f}, and {:.1f} GB/s go from one to the other",
      1 / token, kPrompt / prompt, kPrompt, 1e-9 * peaks.gpu.bytes_per_second,
      1e-9 * peaks.cpu.bytes_per_second, 1e-9 * peaks.link_bytes_per_second);
}

double share_with_room(const program::Program& program, int64_t context, int64_t gpu_bytes) {
  const std::vector<program::RoutedExperts> mixtures = program::routed_experts(program);
  int64_t experts = 0;
  for (const program::RoutedExperts& one : mixtures) experts += one.bytes;
  const int64_t pages = (context + program::kPageRows - 1) / program::kPageRows;
  const int64_t rest = weight_bytes(program) - experts + kBeside +
                       program::cache_bytes(program, program::CacheRoom{.pages = pages, .state_slots = 2});
  if (rest > gpu_bytes) return -1;
  if (experts == 0) return 1;
  return std::min(1.0, static_cast<double>(gpu_bytes - rest) / static_cast<double>(experts));
}

}  // namespace sluice::cli
