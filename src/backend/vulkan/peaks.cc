#include "backend/vulkan/peaks.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace sluice::backend::vulkan {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 30;  ///< far more than caches hold
constexpr uint32_t kReadingGroups = 2048, kPasses = 6;

/// A pool with the one set that reads `buffer`, and a clock of a reading before each pass and one at the end.
struct Reading {
  Reading(const Context& context, const Buffer& buffer);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  std::array<uint64_t, kPasses + 1> run(Context& context, uint32_t pieces) const;

  const Device& device;
  VkDescriptorPool pool = nullptr;
  VkDescriptorSet set = nullptr;
  VkQueryPool clock = nullptr;
};

Reading::Reading(const Context& context, const Buffer& buffer) : device(*context.device) {
  const DeviceApi& api = device.api();
  const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kBindings};
  VkDescriptorPoolCreateInfo sets{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
  sets.maxSets = 1, sets.poolSizeCount = 1, sets.pPoolSizes = &size;
  check(api.CreateDescriptorPool(device.handle(), &sets, nullptr, &pool), "a pool of sets");
  const VkDescriptorSetLayout layout = context.pipelines.set_layout();
  VkDescriptorSetAllocateInfo allocate{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  allocate.descriptorPool = pool, allocate.descriptorSetCount = 1, allocate.pSetLayouts = &layout;
  check(api.AllocateDescriptorSets(device.handle(), &allocate, &set), "a set");
  const VkDescriptorBufferInfo all{buffer.handle(), 0, VK_WHOLE_SIZE};
  for (uint32_t i = 0; i < kBindings; ++i) {
    VkWriteDescriptorSet write{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set, write.dstBinding = i, write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, write.pBufferInfo = &all;
    api.UpdateDescriptorSets(device.handle(), 1, &write, 0, nullptr);
  }
  VkQueryPoolCreateInfo queries{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  queries.queryType = VK_QUERY_TYPE_TIMESTAMP, queries.queryCount = kPasses + 1;
  check(api.CreateQueryPool(device.handle(), &queries, nullptr, &clock), "a clock");
}

Reading::~Reading() {
  device.api().DestroyQueryPool(device.handle(), clock, nullptr);
  device.api().DestroyDescriptorPool(device.handle(), pool, nullptr);
}

std::array<uint64_t, kPasses + 1> Reading::run(Context& context, uint32_t pieces) const {
  const DeviceApi& api = device.api();
  VkPipeline pipeline = nullptr;
  {
    const std::lock_guard lock(context.mutex);
    pipeline = context.pipelines.get(Shader::read_all, {});
  }
  const VkPipelineLayout layout = context.pipelines.layout();
  VkCommandBuffer commands = device.new_commands();
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  check(api.BeginCommandBuffer(commands, &begin), "commands");
  api.CmdResetQueryPool(commands, clock, 0, kPasses + 1);
  api.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  api.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, nullptr);
  api.CmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof pieces, &pieces);
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, clock, pass);
    api.CmdDispatch(commands, kReadingGroups, 1, 1);
    device.record_barrier(commands);
  }
  api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, clock, kPasses);
  check(api.EndCommandBuffer(commands), "commands");
  device.run(commands);
  device.free_commands(commands);
  std::array<uint64_t, kPasses + 1> ticks{};
  check(api.GetQueryPoolResults(device.handle(), clock, 0, kPasses + 1, sizeof ticks, ticks.data(),
                                sizeof(uint64_t), VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
        "a clock");
  return ticks;
}

}  // namespace

double measure_read_bandwidth(Context& context) {
  const Device& device = *context.device;
  const DeviceInfo& info = device.info();
  int64_t bytes =
      std::min({kReadBytes, info.most_bound_bytes, info.most_allocated_bytes, device.available_bytes() / 4});
  bytes -= bytes % 256;
  if (bytes <= 0 || info.timestamp_ns <= 0) return 0;
  Buffer buffer(device, bytes, Device::Place::Device);
  buffer.zero();
  const auto ticks = Reading(context, buffer).run(context, static_cast<uint32_t>(bytes / 16));
  double best = 0;
  for (size_t pass = 1; pass < kPasses; ++pass) {  // the first one is for warming up
    const double seconds = static_cast<double>(ticks[pass + 1] - ticks[pass]) * info.timestamp_ns * 1e-9;
    if (seconds > 0) best = std::max(best, static_cast<double>(bytes) / seconds);
  }
  return best;
}

}  // namespace sluice::backend::vulkan
