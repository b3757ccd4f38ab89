// A step of some size as commands: recorded once, submitted as often as there are such steps.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/vulkan/context.h"
#include "backend/vulkan/kernels.h"
#include "backend/vulkan/weights.h"

namespace sluice::backend::vulkan {

/// A program's memory on a device.
struct Memory {
  Memory(const Context& context, const Layout& layout);
  /// The rows of a layer's cache, or all of a state.
  Weights::Part part(const Layout& layout, program::TensorId cache, int64_t layer) const;
  int64_t bytes() const;

  Buffer arena, step, results;
  int64_t top_at = 0;          ///< in results, behind the logits
  std::vector<Buffer> caches;  ///< in the order of Program::caches(): [layers][pages] rows
};

class Recording {
 public:
  /// timed: with the clock's reading before the first op and after each.
  Recording(const Context& context, const Layout& layout, const Sizes& sizes, bool timed);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void record(const program::Source& source, const Weights& weights, Context& context, const Memory& memory);
  void run();
  /// The readings, in nanoseconds.
  std::vector<int64_t> times() const;
  size_t dispatches() const { return dispatches_; }
  size_t barriers() const { return barriers_; }

 private:
  VkDescriptorSet set_for(const program::Source& source, const Weights& weights, const Context& context,
                          const Memory& memory, const Dispatch& dispatch);
  void add(const Context& context, VkDescriptorSet set, VkPipeline pipeline, const Dispatch& dispatch);
  void record_dispatch(const program::Source& source, const Weights& weights, Context& context,
                       const Memory& memory, const Dispatch& dispatch);
  void record_results(const Memory& memory, const Top& found);
  void begin_pool(const Context& context, size_t sets);

  const Device& device_;
  const Layout& layout_;
  Sizes sizes_;
  VkCommandBuffer commands_ = nullptr;
  VkDescriptorPool pool_ = nullptr;
  VkQueryPool queries_ = nullptr;
  uint32_t readings_ = 0;
  int64_t took_ns_ = 0;  ///< the last time; 0: it has not run yet
  size_t dispatches_ = 0, barriers_ = 0;
  using Bound = std::vector<std::tuple<VkBuffer, VkDeviceSize, VkDeviceSize>>;
  std::map<Bound, VkDescriptorSet> sets_;
};

}  // namespace sluice::backend::vulkan
