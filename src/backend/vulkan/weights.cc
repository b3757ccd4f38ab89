#include "backend/vulkan/weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "program/op_info.h"

namespace sluice::backend::vulkan {
namespace {

using namespace program;

/// The largest alignment of a buffer's part that Vulkan lets a device ask for.
constexpr int64_t kAlign = 256;
/// A buffer ends with the tensor that takes it beyond this, as kernels count its bytes in 32 bits.
constexpr int64_t kArenaBytes = int64_t{2} << 30;
/// Shaders read words, and may read one behind the last; and 16 bytes at a time.
constexpr int64_t kBehind = 8, kQuad = 16;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t file_bytes(const Tensor& tensor) {
  return quant::bytes_of(quant::type_info(tensor.type), tensor.shape[0] * tensor.shape[1] * tensor.shape[2]);
}
int64_t seen_bytes(const Tensor& tensor) {
  return (file_bytes(tensor) + kBehind + kQuad - 1) / kQuad * kQuad;
}
int64_t vector_bytes(const Tensor& tensor) {
  return is_vector(tensor) ? tensor.columns() * static_cast<int64_t>(sizeof(float)) : 0;
}
int64_t taken_bytes(const Tensor& tensor) {
  return aligned(seen_bytes(tensor)) + aligned(vector_bytes(tensor));
}

std::vector<bool> used_weights(const Program& program) {
  std::vector<bool> used(program.tensors().size(), false);
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (program[id].kind == Kind::Weight) used[static_cast<size_t>(program.storage(id))] = true;
    });
  }
  return used;
}

}  // namespace

std::vector<PackedWeight> Weights::held(const Program& program) {
  const std::vector<bool> used = used_weights(program);
  std::vector<PackedWeight> list;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const Tensor& tensor = program.tensors()[i];
    list.push_back({static_cast<TensorId>(i),
                    is_vector(tensor) ? "as in the file, and float32" : "as in the file",
                    taken_bytes(tensor)});
  }
  return list;
}

Weights::Weights(std::shared_ptr<const Device> device, std::span<const Source> sources,
                 const Progress& progress)
    : device_(std::move(device)) {
  struct Item {
    const Tensor* tensor;
    std::span<const std::byte> bytes;
  };
  std::vector<Item> items;
  std::vector<int64_t> sizes;
  const DeviceInfo& info = device_->info();
  int64_t total = 0;
  for (const Source& source : sources) {
    const std::vector<bool> used = used_weights(source.program);
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) continue;
      const Tensor& tensor = source.program.tensors()[i];
      const std::span<const std::byte> bytes = source.weights[i];
      CHECK(!bytes.empty(), "{}", tensor.name);
      const int64_t most = std::min(info.most_bound_bytes, info.most_allocated_bytes);
      if (seen_bytes(tensor) > most)
        fail("{}: takes {} MB; {} gives a kernel {} MB at most", tensor.name, seen_bytes(tensor) >> 20,
             info.name, most >> 20);
      const auto [place, is_new] = places_.try_emplace(bytes.data());
      if (!is_new) continue;
      const int64_t room = std::min(kArenaBytes, most - taken_bytes(tensor));
      if (sizes.empty() || sizes.back() > room) sizes.push_back(0);
      place->second = {sizes.size() - 1, sizes.back(), seen_bytes(tensor),
                       sizes.back() + aligned(seen_bytes(tensor)), vector_bytes(tensor)};
      sizes.back() += taken_bytes(tensor);
      items.push_back({&tensor, bytes});
      total += file_bytes(tensor);
    }
  }
  for (const int64_t bytes : sizes) arenas_.emplace_back(*device_, bytes, Device::Place::Device);
  std::unique_ptr<Buffer> stage;
  if (!arenas_.empty() && arenas_.front().mapped() == nullptr)
    stage = std::make_unique<Buffer>(*device_, kStageBytes, Device::Place::Written);
  int64_t done = 0;
  for (const Item& item : items) {
    const Place& place = places_.at(item.bytes.data());
    Buffer& arena = arenas_[place.arena];
    arena.write(place.at, item.bytes.first(static_cast<size_t>(file_bytes(*item.tensor))), stage.get());
    if (place.vector_bytes > 0) {
      std::vector<float> values(static_cast<size_t>(item.tensor->columns()));
      quant::type_info(item.tensor->type).decode(item.bytes.data(), values.data(), item.tensor->columns());
      arena.write(place.vector_at, std::as_bytes(std::span(values)), stage.get());
    }
    done += file_bytes(*item.tensor);
    if (progress) progress(done, total);
  }
}

int64_t Weights::bytes() const {
  int64_t bytes = 0;
  for (const Buffer& arena : arenas_) bytes += arena.bytes();
  return bytes;
}

Weights::Part Weights::part(const std::byte* file, bool vector) const {
  const auto found = places_.find(file);
  CHECK(found != places_.end(), "the weights were loaded for other programs");
  const Place& place = found->second;
  CHECK(!vector || place.vector_bytes > 0, "a vector that is none");
  const int64_t at = vector ? place.vector_at : place.at;
  const int64_t bytes = vector ? place.vector_bytes : place.bytes;
  return {arenas_[place.arena].handle(), static_cast<VkDeviceSize>(at), static_cast<VkDeviceSize>(bytes)};
}

Weights::Part Weights::whole(const std::byte* file) const {
  const Buffer& arena = arenas_[places_.at(file).arena];
  return {arena.handle(), 0,
          static_cast<VkDeviceSize>(std::min(arena.bytes(), device_->info().most_bound_bytes))};
}

}  // namespace sluice::backend::vulkan
