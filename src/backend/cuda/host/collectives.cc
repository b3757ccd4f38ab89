#include "backend/cuda/host/collectives.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/stream.h"
#include "base/check.h"
#include "base/error.h"

namespace sluice::backend::cuda {

using namespace program;

namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kByte = 1, kInt = 2, kFloat = 7, kSum = 0;  // ncclUint8, ncclInt32, ncclFloat32, ncclSum

}  // namespace

struct Collectives::Functions {
  struct UniqueId {
    char bytes[128];
  };
  int (*get_id)(UniqueId*);
  int (*init)(void**, int, UniqueId, int);
  int (*destroy)(void*);
  int (*abort)(void*);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t);
  int (*send)(const void*, size_t, int, int, void*, cudaStream_t);
  int (*receive)(void*, size_t, int, int, void*, cudaStream_t);
  int (*group_start)();
  int (*group_end)();
  const char* (*error_string)(int);
};

const Collectives::Functions& Collectives::functions() {
  static const Functions loaded = [] {
    void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail("NCCL, by which GPUs exchange, cannot be loaded: {}", ::dlerror());
    Functions f{};
    const auto find = [&](const char* name, auto& to) {
      void* const found = ::dlsym(library, name);
      if (found == nullptr) fail("{} lacks {}", kLibrary, name);
      to = reinterpret_cast<std::decay_t<decltype(to)>>(found);
    };
    find("ncclGetUniqueId", f.get_id);
    find("ncclCommInitRank", f.init);
    find("ncclCommDestroy", f.destroy);
    find("ncclCommAbort", f.abort);
    find("ncclAllReduce", f.all_reduce);
    find("ncclSend", f.send);
    find("ncclRecv", f.receive);
    find("ncclGroupStart", f.group_start);
    find("ncclGroupEnd", f.group_end);
    find("ncclGetErrorString", f.error_string);
    return f;
  }();
  return loaded;
}

void Collectives::check(int result, const char* what) {
  if (result != 0) fail("NCCL: {}: {}", what, functions().error_string(result));
}

Collectives::Id Collectives::make_id() {
  Functions::UniqueId unique;
  check(functions().get_id(&unique), "ncclGetUniqueId");
  Id id;
  std::copy_n(unique.bytes, id.size(), id.begin());
  return id;
}

Collectives::Collectives(const Id& id, int rank, int ranks) : rank_(rank), ranks_(ranks) {
  Functions::UniqueId unique;
  std::copy_n(id.begin(), id.size(), unique.bytes);
  check(functions().init(&communicator_, ranks, unique, rank), "ncclCommInitRank");
  warm_up();
  const auto add_up = [this](std::span<uint8_t> bytes) {
    const Stream stream;
    const Buffer there(std::ssize(bytes));
    cuda::check(cudaMemcpyAsync(there.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
    check(
        functions().all_reduce(there.data(), there.data(), bytes.size(), kByte, kSum, communicator_, stream),
        "ncclAllReduce");
    cuda::check(cudaMemcpyAsync(bytes.data(), there.data(), bytes.size(), cudaMemcpyDeviceToHost, stream));
    stream.wait();
  };
  peers_ = Peers::meet(rank, ranks, add_up);
}

Collectives::~Collectives() {
  if (communicator_ != nullptr && !aborted_) functions().destroy(communicator_);
}

void Collectives::abort() {
  if (peers_) peers_->stop();
  if (!aborted_.exchange(true)) functions().abort(communicator_);
}

// Connections are made at first use, which is not to be while a graph is captured.
void Collectives::warm_up() const {
  const Stream stream;
  const Buffer memory((1 + int64_t{ranks_}) * int64_t{sizeof(float)});
  auto* const numbers = reinterpret_cast<float*>(memory.data());
  check(functions().all_reduce(numbers, numbers, 1, kFloat, kSum, communicator_, stream), "ncclAllReduce");
  check(functions().group_start(), "ncclGroupStart");
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    check(functions().send(numbers, 1, kFloat, other, communicator_, stream), "ncclSend");
    check(functions().receive(numbers + 1 + other, 1, kFloat, other, communicator_, stream), "ncclRecv");
  }
  check(functions().group_end(), "ncclGroupEnd");
  stream.wait();
}

const Kernel* Collectives::kernel(const Program& program, const Op& op, const Sizes& sizes) const {
  static constexpr Kernel kNccl{"NCCL", nullptr, nullptr};
  const auto* sum = std::get_if<AllReduce>(&op.args);
  return peers_ && sum != nullptr && serves_peer_sum(program, *sum, sizes) ? &kPeerSum : &kNccl;
}

void Collectives::enqueue(const Op& op, const Program& program, const Context& step) const {
  if (const auto* reduce = std::get_if<AllReduce>(&op.args)) {
    all_reduce(*reduce, program, step);
  } else if (const auto* all = std::get_if<AllGather>(&op.args)) {
    gather(*all, program, step);
  } else {
    copy(std::get<Copy>(op.args), program, step);
  }
}

// By NCCL rows beyond the step's are added up, too, and nobody reads them.
void Collectives::all_reduce(const AllReduce& op, const Program& program, const Context& step) const {
  CHECK(op.in.size() <= 1 && op.out.size() == 1, "a sum of several parts of one rank");
  const Rows<float> out = step.memory.rows(op.out[0].id);
  const Rows<float> in = op.in.empty() ? out : step.memory.rows(op.in[0].id);
  const int64_t columns = int64_t{out.heads} * out.columns, rows = step.rows(program[op.out[0].id]);
  CHECK(in.row_stride == columns && out.row_stride == columns, "rows with gaps");
  if (peers_ && serves_peer_sum(program, op, step.sizes()))
    return launch_peer_sum(peers_->memory(), program, op, step);
  const auto count = static_cast<size_t>(rows * columns);
  // Who has nothing of what is cut brings nothing.
  if (op.in.empty()) cuda::check(cudaMemsetAsync(out.data, 0, count * sizeof(float), step.stream));
  check(functions().all_reduce(in.data, out.data, count, kFloat, kSum, communicator_, step.stream),
        "ncclAllReduce");
}

void Collectives::copy(const Copy& op, const Program& program, const Context& step) const {
  const int from = program[op.in.id].place, to = program[op.out.id].place;
  const Rows<float> rows = step.memory.rows(from == rank_ ? op.in.id : op.out.id);
  const int64_t columns = int64_t{rows.heads} * rows.columns;
  CHECK(rows.row_stride == columns, "rows with gaps");
  const auto count = static_cast<size_t>(step.rows(program[op.in.id]) * columns);
  from == rank_
      ? check(functions().send(rows.data, count, kFloat, to, communicator_, step.stream), "ncclSend")
      : check(functions().receive(rows.data, count, kFloat, from, communicator_, step.stream), "ncclRecv");
}

void Collectives::hand_out(int32_t* numbers, int64_t count, cudaStream_t stream) const {
  const auto all = static_cast<size_t>(count);
  check(functions().group_start(), "ncclGroupStart");
  for (int other = 1; other < ranks_ && rank_ == 0; ++other)
    check(functions().send(numbers, all, kInt, other, communicator_, stream), "ncclSend");
  if (rank_ != 0) check(functions().receive(numbers, all, kInt, 0, communicator_, stream), "ncclRecv");
  check(functions().group_end(), "ncclGroupEnd");
}

void Collectives::gather(const AllGather& op, const Program& program, const Context& step) const {
  const Memory& memory = step.memory;
  const cudaStream_t stream = step.stream;
  const int64_t rows = step.rows(program[op.in.empty() ? op.out[0].id : op.in[0].id]);
  check(functions().group_start(), "ncclGroupStart");
  for (const Read& in : op.in) {
    const Rows<float> part = memory.rows(in.id);
    CHECK(part.row_stride == part.columns, "rows with gaps");
    const auto count = static_cast<size_t>(rows * part.columns);
    if (rank_ == 0 && program[in.id].place != 0)
      check(functions().receive(part.data, count, kFloat, program[in.id].place, communicator_, stream),
            "ncclRecv");
    if (rank_ != 0) check(functions().send(part.data, count, kFloat, 0, communicator_, stream), "ncclSend");
  }
  check(functions().group_end(), "ncclGroupEnd");
  if (rank_ != 0) return;
  const Rows<float> all = memory.rows(op.out[0].id);
  int64_t first = 0;
  for (const Read& in : op.in) {
    const Rows<float> part = memory.rows(in.id);
    const auto bytes = static_cast<size_t>(part.columns) * sizeof(float);
    cuda::check(cudaMemcpy2DAsync(all.data + first, static_cast<size_t>(all.row_stride) * sizeof(float),
                                  part.data, bytes, bytes, static_cast<size_t>(rows),
                                  cudaMemcpyDeviceToDevice, stream));
    first += part.columns;
  }
}

}  // namespace sluice::backend::cuda
