#include "backend/cuda/host/stream_weights.h"

#include <algorithm>
#include <chrono>

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/matrix_copies.h"
#include "backend/cuda/host/on_device.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_info.h"
#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend::cuda {

using namespace program;

namespace {

constexpr int64_t kPieceBytes = 4 << 20;
constexpr int kMostThreads = 8;

int threads() { return std::clamp(usable_threads(), 1, kMostThreads); }

/// The streamed weights that an op reads.
std::vector<TensorId> streamed_by(const Program& program, const Op& op) {
  std::vector<TensorId> list;
  info(op).operands(op, [&](const char*, TensorId id, bool) {
    if (id == kNoTensor || program[id].kind != Kind::Weight) return;
    const TensorId storage = program.storage(id);
    if (program[storage].streamed && std::ranges::find(list, storage) == list.end()) list.push_back(storage);
  });
  return list;
}

}  // namespace

std::vector<StreamedOps> streamed_ops(const Program& program) {
  std::vector<StreamedOps> list;
  bool is_gated = false;  // the last load is gates and ups, and not downs
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const Op& op = program.ops()[i];
    const std::vector<TensorId> weights = streamed_by(program, op);
    if (weights.empty()) continue;
    const auto at = static_cast<int64_t>(i);
    // Where an op runs as its expansion, a gate and its up may be two ops' weights.
    const bool down = std::holds_alternative<MoeDownAdd>(op.args) ||
                      (std::holds_alternative<ExpertMatmul>(op.args) && !list.empty() && is_gated &&
                       list.back().weights.size() >= 2);
    if (list.empty() || down || !is_gated) {
      list.push_back({{at, at + 1}, weights});
    } else {
      list.back().ops.last = at + 1;
      list.back().weights.insert(list.back().weights.end(), weights.begin(), weights.end());
    }
    is_gated = !down;
  }
  return list;
}

std::vector<Range> launched_parts(const Program& program) {
  const std::vector<StreamedOps> loads = streamed_ops(program);
  if (loads.empty()) return parts(program);
  std::vector<Range> list;
  int64_t first = 0;
  for (const StreamedOps& load : loads) {
    list.push_back({first, load.ops.first});
    list.push_back(load.ops);
    first = load.ops.last;
  }
  list.push_back({first, static_cast<int64_t>(program.ops().size())});
  return list;
}

int64_t WeightStream::device_bytes() { return threads() * UploadLane::device_bytes(kPieceBytes); }

WeightStream::WeightStream(std::vector<std::vector<StreamedWeight>> loads, double most_bytes_per_second)
    : device_(current_device()), most_bytes_per_second_(most_bytes_per_second), loads_(std::move(loads)) {
  uploads_of_.resize(loads_.size());
  enqueued_.resize(loads_.size());
  cut();
  size_t matrices = 0;  // with slots each may end a piece early
  for (const auto& load : loads_) {
    for (const StreamedWeight& weight : load) matrices += static_cast<size_t>(weight.matrices);
  }
  pieces_.reserve(pieces_.size() + matrices);
  next_ = pieces_.size();  // no step has begun
  there_.resize(static_cast<size_t>(threads()));
  const auto create = [](cudaEvent_t& event) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  };
  for (cudaEvent_t& event : free_) create(event);
  for (auto& of_thread : there_) {
    for (cudaEvent_t& event : of_thread) create(event);
  }
  // What there is no memory for fails here, and not in a step.
  for (int thread = 0; thread < threads(); ++thread)
    lanes_.push_back(std::make_unique<UploadLane>(kPieceBytes));
  for (int thread = 0; thread < threads(); ++thread) team_.emplace_back([this, thread] { work(thread); });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : team_) thread.join();
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
  for (const auto& of_thread : there_) {
    for (cudaEvent_t event : of_thread) cudaEventDestroy(event);
  }
}

void WeightStream::take_from(TensorId id, const Planes& slots, std::span<const int32_t> slot_of) {
  for (auto& load : loads_) {
    for (StreamedWeight& weight : load) {
      if (weight.id == id) weight.slots = slots, weight.slot_of = slot_of;
    }
  }
}

void WeightStream::cut() {
  pieces_.clear();
  for (size_t load = 0; load < loads_.size(); ++load) {
    const size_t before = pieces_.size();
    const auto add = [&](const UploadPiece& piece) { pieces_.push_back({load, piece}); };
    for (const StreamedWeight& weight : loads_[load]) {
      const int64_t numbers = weight.numbers();
      for (int64_t first = 0, last = 0; first < weight.matrices; first = last + 1) {
        last = weight.matrices;
        if (!weight.slot_of.empty()) {
          const auto from = weight.slot_of.begin() + first;
          last = first + (std::find_if(from, weight.slot_of.end(), [](int32_t s) { return s >= 0; }) - from);
        }
        cut_upload(weight.upload, first * numbers, (last - first) * numbers, kPieceBytes, add);
      }
    }
    uploads_of_[load] = pieces_.size() - before;
  }
}

void WeightStream::begin() {
  {
    const std::lock_guard lock(mutex_);
    CHECK(next_ == pieces_.size() || failure_, "a step before this one has not ended");
    cut();
    std::ranges::fill(enqueued_, 0);
    next_ = used_ = 0;
    sent_bytes_ = 0;
    begun_ns_ = now_ns();
  }
  changed_.notify_all();
}

void WeightStream::wait(size_t load, cudaStream_t stream) {
  for (const StreamedWeight& weight : loads_[load]) {
    copy_matrices(weight.upload.type, weight.numbers(), weight.slots, weight.slot_of, weight.upload.planes,
                  stream);
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return enqueued_[load] == uploads_of_[load] || failure_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  // No thread copies to this room again before used() is called.
  for (const auto& of_thread : there_) check(cudaStreamWaitEvent(stream, of_thread[load % kStreamRooms], 0));
}

void WeightStream::used(size_t load, cudaStream_t stream) {
  check(cudaEventRecord(free_[load % kStreamRooms], stream));
  {
    const std::lock_guard lock(mutex_);
    used_ = load + 1;
  }
  changed_.notify_all();
}

void WeightStream::bring(size_t i, size_t thread) {
  const auto& [load, piece] = pieces_[i];
  const size_t room = load % kStreamRooms;
  lanes_[thread]->send(piece, free_[room]);
  check(cudaEventRecord(there_[thread][room], lanes_[thread]->stream()));
}

void WeightStream::work(int thread) {
  try {
    const OnDevice on(device_);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] {
        return ends_ || (!failure_ && next_ < pieces_.size() && pieces_[next_].load < used_ + kStreamRooms);
      });
      if (ends_) return;
      const size_t i = next_++;
      const int64_t due_ns = most_bytes_per_second_ > 0
                                 ? begun_ns_ + static_cast<int64_t>(1e9 * static_cast<double>(sent_bytes_) /
                                                                    most_bytes_per_second_)
                                 : 0;
      sent_bytes_ += pieces_[i].piece.bytes();
      lock.unlock();
      if (const int64_t early_ns = due_ns - now_ns(); early_ns > 0)
        std::this_thread::sleep_for(std::chrono::nanoseconds(early_ns));
      bring(i, static_cast<size_t>(thread));
      lock.lock();
      if (++enqueued_[pieces_[i].load] == uploads_of_[pieces_[i].load]) changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

}  // namespace sluice::backend::cuda
