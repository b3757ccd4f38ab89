#include "backend/cuda/host/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "backend/cuda/host/format.h"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/stream_weights.h"
#include "backend/cuda/host/upload.h"
#include "base/check.h"
#include "program/op_info.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int64_t kAlign = 256;
/// An allocation ends with the tensor that takes it beyond this: one of everything might find no room where
/// the device's memory is in pieces.
constexpr int64_t kArenaBytes = int64_t{1} << 30;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t numbers(const Tensor& tensor) { return tensor.shape[0] * tensor.shape[1] * tensor.shape[2]; }

PlaneBytes plane_bytes_of(const Tensor& tensor) {
  const PlaneBytes bytes = plane_bytes(tensor.type, numbers(tensor));
  return {aligned(bytes.codes), aligned(bytes.high), aligned(bytes.scale), aligned(bytes.super)};
}

int64_t packed_bytes(const Tensor& tensor) {
  const PlaneBytes bytes = plane_bytes_of(tensor);
  return bytes.codes + bytes.high + bytes.scale + bytes.super;
}

bool is_vector(const Tensor& tensor) { return tensor.shape[0] == 1 && tensor.shape[1] == 1; }

int64_t vector_bytes(const Tensor& tensor) {
  return is_vector(tensor) ? aligned(tensor.columns() * static_cast<int64_t>(sizeof(float))) : 0;
}

/// "planes: 16 B of codes, 2 of scales per 32 columns, 4 of scales per 256".
std::string layout_of(const Tensor& tensor) {
  const Format* format = find_format(tensor.type);
  if (format == nullptr) return is_vector(tensor) ? "rows, and float32" : "rows";
  std::string text = fmt::format("planes: {} B of codes", format->codes);
  if (format->high > 0) text += fmt::format(", {} of top bits", format->high);
  const bool scales_in_plane = tensor.type == quant::Type::Q3_K;
  if (!scales_in_plane) text += fmt::format(", {} of scales", format->scale);
  text += " per 32 columns";
  const int per_256 = format->super + (scales_in_plane ? format->scale : 0);
  if (per_256 > 0) text += fmt::format(", {} of scales per 256", per_256);
  return text;
}

/// A tensor on its way.
struct Item {
  const Tensor* tensor;
  std::span<const std::byte> bytes;
  size_t arena;
  int64_t offset;
};

/// By room, what the largest load in it takes.
std::array<int64_t, kStreamRooms> room_bytes(const Program& program) {
  std::array<int64_t, kStreamRooms> most{};
  size_t load = 0;
  for (const StreamedOps& ops : streamed_ops(program)) {
    int64_t bytes = 0;
    for (const TensorId id : ops.weights) bytes += packed_bytes(program[id]);
    int64_t& room = most[load++ % kStreamRooms];
    room = std::max(room, bytes);
  }
  return most;
}

}  // namespace

int64_t streamed_bytes(const Program& program) {
  const auto rooms = room_bytes(program);
  return std::accumulate(rooms.begin(), rooms.end(), int64_t{0});
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

Planes planes_at(const Tensor& tensor, char* base) {
  const PlaneBytes bytes = plane_bytes_of(tensor);
  auto* at = reinterpret_cast<uint8_t*>(base);
  return {at, at + bytes.codes, at + bytes.codes + bytes.high, at + bytes.codes + bytes.high + bytes.scale};
}

std::vector<PackedWeight> Weights::held(const Program& program) {
  const std::vector<bool> used = used_weights(program);
  std::vector<PackedWeight> list;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const Tensor& tensor = program.tensors()[i];
    if (tensor.streamed) {
      list.push_back({static_cast<TensorId>(i), "comes while a step runs, " + layout_of(tensor), 0});
      continue;
    }
    list.push_back(
        {static_cast<TensorId>(i), layout_of(tensor), packed_bytes(tensor) + vector_bytes(tensor)});
  }
  return list;
}

Weights::Weights(std::span<const Source> sources, const Progress& progress) : device_(current_device()) {
  std::vector<Item> items;
  std::vector<int64_t> arenas;
  for (const Source& source : sources) {
    const std::vector<bool> used = used_weights(source.program);
    for (size_t i = 0; i < used.size(); ++i) {
      const Tensor& tensor = source.program.tensors()[i];
      if (!used[i] || tensor.streamed) continue;
      const std::span<const std::byte> bytes = source.weights[i];
      CHECK(!bytes.empty(), "{}", tensor.name);
      if (!places_.try_emplace(bytes.data()).second) continue;  // another program's, too
      if (arenas.empty() || arenas.back() >= kArenaBytes) arenas.push_back(0);
      items.push_back({&tensor, bytes, arenas.size() - 1, arenas.back()});
      arenas.back() += packed_bytes(tensor) + vector_bytes(tensor);
    }
  }
  for (const int64_t bytes : arenas) arenas_.emplace_back(bytes);
  std::vector<Upload> uploads;
  for (const Item& item : items) {
    const Tensor& tensor = *item.tensor;
    Place& place = places_.at(item.bytes.data());
    place.planes = arenas_[item.arena].data() + item.offset;
    uploads.push_back({tensor.type, item.bytes, planes_at(tensor, place.planes)});
    if (!is_vector(tensor)) continue;
    place.vector = reinterpret_cast<float*>(place.planes + packed_bytes(tensor));
    std::vector<float> values(static_cast<size_t>(tensor.columns()));
    quant::type_info(tensor.type).decode(item.bytes.data(), values.data(), tensor.columns());
    check(cudaMemcpy(place.vector, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  for (const Source& source : sources) place_streamed(source);
  check(cudaStreamSynchronize(nullptr));  // a copy from pageable memory may end after cudaMemcpy has returned
  upload(uploads, progress);
  check(cudaDeviceSynchronize());
}

void Weights::place_streamed(const Source& source) {
  const std::vector<StreamedOps> loads = streamed_ops(source.program);
  if (loads.empty()) return;
  const auto rooms = room_bytes(source.program);
  const int64_t bytes = streamed_bytes(source.program);
  CHECK(rooms_.bytes() == 0 || rooms_.bytes() == bytes, "two programs with other streamed weights");
  if (rooms_.bytes() == 0) rooms_ = Buffer(bytes);
  for (size_t load = 0; load < loads.size(); ++load) {
    char* at = rooms_.data() + (load % kStreamRooms == 0 ? 0 : rooms[0]);
    for (const TensorId id : loads[load].weights) {
      places_[source.weights[static_cast<size_t>(id)].data()] = {at, nullptr};
      at += packed_bytes(source.program[id]);
    }
  }
}

const Weights::Place& Weights::at(const std::byte* file) const {
  const auto found = places_.find(file);
  CHECK(found != places_.end(), "the weights were loaded for other programs");
  return found->second;
}

int64_t Weights::bytes() const {
  int64_t bytes = rooms_.bytes();
  for (const Buffer& arena : arenas_) bytes += arena.bytes();
  return bytes;
}

}  // namespace sluice::backend::cuda
