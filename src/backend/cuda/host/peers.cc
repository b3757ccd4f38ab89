#include "backend/cuda/host/peers.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/stream.h"
#include "base/error.h"

namespace sluice::backend::cuda {

std::unique_ptr<Peers> Peers::meet(int rank, int ranks, const AddUp& add_up) {
  if (ranks > kMostPeers) return nullptr;
  std::unique_ptr<Peers> peers(new Peers(rank, ranks));
  // Every rank comes to every vote.
  const auto all = [&](bool mine) {
    uint8_t votes = mine ? 1 : 0;
    add_up({&votes, 1});
    return votes == ranks;
  };
  peers->open(add_up);
  if (!all(peers->opened_) || !all(peers->adds_up())) return nullptr;
  return peers;
}

Peers::Peers(int rank, int ranks)
    : inbox_(PeerMemory::inbox_bytes(ranks)), state_(int64_t{sizeof(PeerState)}) {
  check(cudaMemset(inbox_.data(), 0, static_cast<size_t>(inbox_.bytes())));
  check(cudaMemset(state_.data(), 0, static_cast<size_t>(state_.bytes())));
  check(cudaDeviceSynchronize());
  uint32_t* stop = nullptr;
  allocate_pinned(stop, sizeof *stop);
  *stop = 0, stop_ = stop;
  memory_ = {rank, ranks, {}, reinterpret_cast<PeerState*>(state_.data()), stop_};
  memory_.inbox[rank] = inbox_.data();
}

Peers::~Peers() {
  for (int other = 0; other < memory_.ranks; ++other) {
    if (other != memory_.rank && memory_.inbox[other] != nullptr) cudaIpcCloseMemHandle(memory_.inbox[other]);
  }
  cudaFreeHost(const_cast<uint32_t*>(stop_));
}

void Peers::open(const AddUp& add_up) {
  std::vector<uint8_t> handles(static_cast<size_t>(memory_.ranks) * sizeof(cudaIpcMemHandle_t), 0);
  const auto handle_at = [&](int rank) {
    return handles.data() + static_cast<size_t>(rank) * sizeof(cudaIpcMemHandle_t);
  };
  cudaIpcMemHandle_t handle;
  if (cudaIpcGetMemHandle(&handle, inbox_.data()) == cudaSuccess)
    std::memcpy(handle_at(memory_.rank), &handle, sizeof handle);
  add_up(handles);
  for (int other = 0; other < memory_.ranks && opened_; ++other) {
    if (other == memory_.rank) continue;
    std::memcpy(&handle, handle_at(other), sizeof handle);
    void* at = nullptr;
    opened_ = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    memory_.inbox[other] = static_cast<char*>(at);
  }
  cudaGetLastError();  // which is no error of anybody else's
}

int64_t Peers::sums_ns() const {
  PeerState state;
  check(cudaMemcpy(&state, state_.data(), sizeof state, cudaMemcpyDeviceToHost));
  return static_cast<int64_t>(state.all_ns);
}

// Rank r brings r + 1, in words and in chunks.
bool Peers::adds_up() {
  constexpr int32_t kColumns = 1024;
  const Stream stream;
  for (const int32_t rows : {1, 1024}) {
    const auto count = static_cast<size_t>(rows * kColumns);
    const Buffer in(static_cast<int64_t>(count * sizeof(float))), out(in.bytes()), counted(sizeof rows);
    const std::vector<float> mine(count, static_cast<float>(memory_.rank + 1));
    std::vector<float> sums(count);
    check(cudaMemcpyAsync(in.data(), mine.data(), count * sizeof(float), cudaMemcpyHostToDevice, stream));
    check(cudaMemcpyAsync(counted.data(), &rows, sizeof rows, cudaMemcpyHostToDevice, stream));
    enqueue_peer_sum({memory_, reinterpret_cast<const int32_t*>(counted.data()), kColumns,
                      reinterpret_cast<const float*>(in.data()), reinterpret_cast<float*>(out.data())},
                     rows, false, stream);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > end) stop();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (*stop_ != 0) return false;
    check(cudaMemcpyAsync(sums.data(), out.data(), count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    stream.wait();
    const auto sum = static_cast<float>(memory_.ranks * (memory_.ranks + 1) / 2);
    for (const float one : sums) {
      if (one != sum) return false;
    }
  }
  return true;
}

}  // namespace sluice::backend::cuda
