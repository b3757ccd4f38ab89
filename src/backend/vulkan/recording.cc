#include "backend/vulkan/recording.h"

#include <algorithm>
#include <array>

#include "backend/vulkan/hazards.h"
#include "backend/vulkan/tables.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace sluice::backend::vulkan {
namespace {

using namespace program;

constexpr int64_t kCacheAlign = 256;
/// Where shaders see weights, and where once more, 16 bytes at a time (of a vector: nowhere).
constexpr std::array<size_t, 4> kWeightsAt = {4, 5, 6, 10};
constexpr std::array<size_t, 4> kQuadsAt = {8, 9, 6, 11};
/// What shaders count vectors in there; matrices are counted in bytes.
constexpr std::array<uint32_t, 4> kUnitBytes = {4, 4, 16, 4};

const std::byte* file_of(const Source& source, const BoundWeight& weight) {
  return source.weights[static_cast<size_t>(source.program.storage(weight.id))].data();
}

bool is_empty(const Dispatch& dispatch) {
  return std::ranges::find(dispatch.groups, 0U) != dispatch.groups.end();
}

/// Of a layer of a paged cache.
int64_t layer_bytes(const Tensor& cache, const CompileOptions& options) {
  const int64_t bytes = options.cache_pages * kPageRows * cache.cache_row().bytes();
  return (bytes + kCacheAlign - 1) / kCacheAlign * kCacheAlign;
}

int64_t buffer_bytes(const Tensor& cache, const CompileOptions& options) {
  const int64_t bytes = cache.kind == Kind::Cache ? cache.shape[0] * layer_bytes(cache, options)
                                                  : cache_bytes(cache, options.cache_room());
  return std::max(bytes, kCacheAlign);
}

}  // namespace

Context::Context(int number, bool staged, bool dot4, const std::string& cache_folder)
    : device(std::make_shared<const Device>(number, staged, dot4)), pipelines(*device, cache_folder) {
  const std::vector<uint32_t> words = format_tables();
  tables = Buffer(*device, static_cast<int64_t>(words.size() * sizeof(uint32_t)), Device::Place::Device);
  tables.write(0, std::as_bytes(std::span(words)));
}

Memory::Memory(const Context& context, const Layout& layout)
    : arena(*context.device, layout.arena_bytes, Device::Place::Device) {
  const DeviceInfo& info = context.device->info();
  if (layout.arena_bytes > info.most_bound_bytes)
    fail("steps of {} rows take {} MB; {} gives a kernel {} MB at most", layout.options.max_rows,
         layout.arena_bytes >> 20, info.name, info.most_bound_bytes >> 20);
  arena.zero();
  const Program& program = layout.program;
  for (const TensorId id : program.caches()) {
    const int64_t bytes = buffer_bytes(program[id], layout.options);
    const int64_t seen = program[id].kind == Kind::Cache ? layer_bytes(program[id], layout.options) : bytes;
    if (seen > info.most_bound_bytes || bytes > info.most_allocated_bytes)
      fail("a cache of {} pages takes {} MB; {} gives {} MB at most", layout.options.cache_pages, bytes >> 20,
           info.name, std::min(info.most_bound_bytes, info.most_allocated_bytes) >> 20);
    caches.emplace_back(*context.device, bytes, Device::Place::Device).zero();
  }
  if (program.output() != kNoTensor) {
    const int64_t rows = std::max<int64_t>(layout.options.max_outputs, 1);
    top_at = rows * program[program.output()].columns() * 4;
    results =
        Buffer(*context.device, top_at + std::min(rows, kMostSorted) * kPairsBytes, Device::Place::ReadBack);
  }
}

Weights::Part Memory::part(const Layout& layout, TensorId cache, int64_t layer) const {
  const Buffer& buffer = caches[layout.program.cache_index(cache)];
  if (layout.program[cache].kind == Kind::State)
    return {buffer.handle(), 0, static_cast<VkDeviceSize>(buffer.bytes())};
  const auto bytes = static_cast<VkDeviceSize>(layer_bytes(layout.program[cache], layout.options));
  return {buffer.handle(), static_cast<VkDeviceSize>(layer) * bytes, bytes};
}

int64_t Memory::bytes() const {
  int64_t bytes = arena.bytes() + step.bytes() + results.bytes();
  for (const Buffer& cache : caches) bytes += cache.bytes();
  return bytes;
}

Recording::Recording(const Context& context, const Layout& layout, const Sizes& sizes, bool timed)
    : device_(*context.device), layout_(layout), sizes_(sizes) {
  commands_ = device_.new_commands();
  if (!timed || device_.info().timestamp_ns <= 0) return;
  readings_ = static_cast<uint32_t>(layout.program.ops().size() + 1);
  VkQueryPoolCreateInfo create{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  create.queryType = VK_QUERY_TYPE_TIMESTAMP, create.queryCount = readings_;
  check(device_.api().CreateQueryPool(device_.handle(), &create, nullptr, &queries_), "a clock");
}

Recording::~Recording() {
  if (queries_ != nullptr) device_.api().DestroyQueryPool(device_.handle(), queries_, nullptr);
  if (pool_ != nullptr) device_.api().DestroyDescriptorPool(device_.handle(), pool_, nullptr);
  device_.free_commands(commands_);
}

void Recording::begin_pool(const Context&, size_t sets) {
  const auto count = static_cast<uint32_t>(std::max<size_t>(sets, 1));
  const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, count * kBindings};
  VkDescriptorPoolCreateInfo create{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
  create.maxSets = count, create.poolSizeCount = 1, create.pPoolSizes = &size;
  check(device_.api().CreateDescriptorPool(device_.handle(), &create, nullptr, &pool_), "a pool of sets");
}

VkDescriptorSet Recording::set_for(const Source& source, const Weights& weights, const Context& context,
                                   const Memory& memory, const Dispatch& dispatch) {
  const auto whole = [](const Buffer& buffer) {
    return Weights::Part{buffer.handle(), 0, static_cast<VkDeviceSize>(buffer.bytes())};
  };
  std::array<Weights::Part, kBindings> parts;
  parts.fill(whole(context.tables));  // what a shader does not look at is bound, too
  parts[1] = whole(memory.step);
  parts[2] = parts[3] = whole(memory.arena);
  for (size_t i = 0; i < dispatch.weights.size(); ++i) {
    const BoundWeight& weight = dispatch.weights[i];
    if (weight.id == kNoTensor) continue;
    const std::byte* file = file_of(source, weight);
    parts[kWeightsAt[i]] = parts[kQuadsAt[i]] =
        weight.at_param >= 0 ? weights.whole(file) : weights.part(file, weight.vector);
  }
  if (dispatch.cache != kNoTensor) parts[7] = memory.part(layout_, dispatch.cache, dispatch.cache_layer);
  Bound key;
  for (const auto& part : parts) key.emplace_back(part.buffer, part.at, part.bytes);
  VkDescriptorSet& set = sets_[key];
  if (set != nullptr) return set;
  const VkDescriptorSetLayout layout = context.pipelines.set_layout();
  VkDescriptorSetAllocateInfo allocate{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
  allocate.descriptorPool = pool_, allocate.descriptorSetCount = 1, allocate.pSetLayouts = &layout;
  check(device_.api().AllocateDescriptorSets(device_.handle(), &allocate, &set), "a set");
  std::array<VkDescriptorBufferInfo, kBindings> buffers{};
  std::array<VkWriteDescriptorSet, kBindings> writes{};
  for (uint32_t i = 0; i < kBindings; ++i) {
    buffers[i] = {parts[i].buffer, parts[i].at, parts[i].bytes};
    writes[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    writes[i].dstSet = set, writes[i].dstBinding = i, writes[i].descriptorCount = 1;
    writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, writes[i].pBufferInfo = &buffers[i];
  }
  device_.api().UpdateDescriptorSets(device_.handle(), kBindings, writes.data(), 0, nullptr);
  return set;
}

void Recording::add(const Context& context, VkDescriptorSet set, VkPipeline pipeline,
                    const Dispatch& dispatch) {
  const DeviceApi& api = device_.api();
  CHECK(dispatch.params.size() <= kMostParams, "{}", name_of(dispatch.shader));
  api.CmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  api.CmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, context.pipelines.layout(), 0, 1, &set,
                            0, nullptr);
  api.CmdPushConstants(commands_, context.pipelines.layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0,
                       static_cast<uint32_t>(dispatch.params.size() * sizeof(uint32_t)),
                       dispatch.params.data());
  api.CmdDispatch(commands_, dispatch.groups[0], dispatch.groups[1], dispatch.groups[2]);
  ++dispatches_;
}

void Recording::record_dispatch(const Source& source, const Weights& weights, Context& context,
                                const Memory& memory, const Dispatch& dispatch) {
  if (is_empty(dispatch)) return;
  VkPipeline pipeline = nullptr;
  {
    const std::lock_guard lock(context.mutex);
    pipeline = context.pipelines.get(dispatch.shader, dispatch.constants);
  }
  Dispatch placed = dispatch;
  for (size_t i = 0; i < dispatch.weights.size(); ++i) {
    const BoundWeight& weight = dispatch.weights[i];
    if (weight.id == kNoTensor || weight.at_param < 0) continue;
    const auto at = weights.part(file_of(source, weight), weight.vector).at;
    placed.params[static_cast<size_t>(weight.at_param)] +=
        static_cast<uint32_t>(at) / (weight.vector ? kUnitBytes[i] : 1);
  }
  add(context, set_for(source, weights, context, memory, dispatch), pipeline, placed);
}

/// Logits, and what was found of them, go to the host.
void Recording::record_results(const Memory& memory, const Top& found) {
  const Program& program = layout_.program;
  const Tensor& output = program[program.output()];
  const int64_t rows = Program::rows(output, sizes_.rows, sizes_.outputs);
  const auto copy = [&](int64_t from, int64_t to, int64_t bytes) {
    const VkBufferCopy region{static_cast<VkDeviceSize>(from), static_cast<VkDeviceSize>(to),
                              static_cast<VkDeviceSize>(bytes)};
    device_.api().CmdCopyBuffer(commands_, memory.arena.handle(), memory.results.handle(), 1, &region);
  };
  device_.record_full_barrier(commands_);
  const int64_t room = std::min(rows, std::max<int64_t>(layout_.options.max_outputs, 1));
  if (sizes_.logits)
    copy(layout_.plan.offset_bytes[static_cast<size_t>(program.storage(program.output()))], 0,
         room * output.columns() * 4);
  if (sizes_.top) copy(found.at * 4, memory.top_at, room * kPairsBytes);
}

void Recording::record(const Source& source, const Weights& weights, Context& context, const Memory& memory) {
  const DeviceApi& api = device_.api();
  const Program& program = layout_.program;
  std::vector<std::vector<Dispatch>> all;
  size_t count = 0;
  for (const Op& op : program.ops())
    count += all.emplace_back(vulkan::dispatches(layout_, op, sizes_)).size();
  const Top found = sizes_.top ? top_of(layout_, sizes_) : Top{};
  begin_pool(context, count + found.dispatches.size());
  std::set<Pipelines::Key> keys;
  const auto needs = [&](const std::vector<Dispatch>& list) {
    for (const Dispatch& dispatch : list) {
      if (!is_empty(dispatch)) keys.emplace(dispatch.shader, dispatch.constants);
    }
  };
  std::for_each(all.begin(), all.end(), needs);
  needs(found.dispatches);
  // Of contexts as they get longer, too: they are cut into more stretches.
  const int64_t most = layout_.options.cache_pages * kPageRows;
  for (Sizes later = sizes_; later.longest < most;) {
    later.longest = std::min(2 * later.longest, most);
    for (const Op& op : program.ops()) needs(vulkan::dispatches(layout_, op, later));
  }
  {
    const std::lock_guard lock(context.mutex);
    context.pipelines.make(keys);
  }
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  check(api.BeginCommandBuffer(commands_, &begin), "commands");
  if (readings_ > 0) {
    api.CmdResetQueryPool(commands_, queries_, 0, readings_);
    api.CmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, queries_, 0);
  }
  Hazards hazards(layout_);
  const auto barrier = [&] {
    device_.record_barrier(commands_);
    ++barriers_;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const bool scratch = std::any_of(all[i].begin(), all[i].end(), [](const auto& d) { return d.waits; });
    if (hazards.before(program.ops()[i], scratch)) barrier();
    for (const Dispatch& dispatch : all[i]) {
      if (dispatch.waits) barrier();
      record_dispatch(source, weights, context, memory, dispatch);
    }
    if (readings_ > 0)
      api.CmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_,
                            static_cast<uint32_t>(i + 1));
  }
  if (program.output() != kNoTensor && sizes_.outputs > 0) {
    for (const Dispatch& dispatch : found.dispatches) {
      if (dispatch.waits) barrier();
      record_dispatch(source, weights, context, memory, dispatch);
    }
    record_results(memory, found);
  }
  device_.record_full_barrier(commands_);
  check(api.EndCommandBuffer(commands_), "commands");
}

void Recording::run() {
  const int64_t begin_ns = now_ns();
  device_.run(commands_, took_ns_);
  took_ns_ = now_ns() - begin_ns;
}

std::vector<int64_t> Recording::times() const {
  std::vector<uint64_t> ticks(readings_);
  if (readings_ == 0) return {};
  check(device_.api().GetQueryPoolResults(device_.handle(), queries_, 0, readings_,
                                          ticks.size() * sizeof(uint64_t), ticks.data(), sizeof(uint64_t),
                                          VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
        "a clock");
  std::vector<int64_t> times;
  times.reserve(ticks.size());
  for (const uint64_t tick : ticks)
    times.push_back(static_cast<int64_t>(static_cast<double>(tick - ticks[0]) * device_.info().timestamp_ns));
  return times;
}

}  // namespace sluice::backend::vulkan
