// Weights that a device has no room for (Tensor::streamed): while a step runs, some threads copy them from
// the mapped file to pinned memory and on to the device, where they are packed as others are, into room that
// two loads take in turns. A load is what ops need together: the gates and ups of a layer's experts, or their
// downs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/cuda/host/upload.h"
#include "program/program.h"

namespace sluice::backend::cuda {

/// Ops that need streamed weights together: neighbours in the list, and nothing between them needs others.
struct StreamedOps {
  program::Range ops;                      ///< [first, last)
  std::vector<program::TensorId> weights;  ///< whole tensors, each once
};
/// In the order of the list; none where nothing is streamed.
std::vector<StreamedOps> streamed_ops(const program::Program& program);

/// The program in parts that are launched by themselves: those of program/places.h, or every load's ops and
/// what lies between them.
std::vector<program::Range> launched_parts(const program::Program& program);

/// Rooms that loads take in turns.
inline constexpr int kStreamRooms = 2;

/// A streamed weight, and where matrices of it lie on the device already (program/expert_slots.h).
struct StreamedWeight {
  program::TensorId id;
  int64_t matrices;
  Upload upload;
  Planes slots = {};
  std::span<const int32_t> slot_of = {};  ///< by matrix; empty: none does

  int64_t numbers() const { return upload.numbers() / matrices; }
};

/// Brings the loads of a step, one behind the other, as their rooms become free. All calls of one thread.
class WeightStream {
 public:
  /// loads: by load, its tensors, which lie in room (load % kStreamRooms). most: bytes a second; 0: no limit.
  WeightStream(std::vector<std::vector<StreamedWeight>> loads, double most_bytes_per_second);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  /// From the next step on; of a weight that it does not bring nothing changes.
  void take_from(program::TensorId weight, const Planes& slots, std::span<const int32_t> slot_of);
  /// A step begins: its loads come.
  void begin();
  /// What `stream` runs from now on finds the load in its place. Slots are copied on `stream` itself, while
  /// the others come.
  void wait(size_t load, cudaStream_t stream);
  /// What `stream` ran until now was all that needs the load.
  void used(size_t load, cudaStream_t stream);

  /// Of the device, for what is on its way.
  static int64_t device_bytes();

 private:
  struct OnItsWay {
    size_t load;
    UploadPiece piece;
  };
  /// What a step's loads have to bring: matrices that have no slot.
  void cut();
  void work(int thread);
  void bring(size_t i, size_t thread);

  int device_;
  double most_bytes_per_second_;
  std::vector<std::vector<StreamedWeight>> loads_;
  std::vector<std::unique_ptr<UploadLane>> lanes_;            // by thread
  std::vector<OnItsWay> pieces_;                              // of a step, in the order of the loads
  std::vector<size_t> uploads_of_;                            // by load, how many
  std::array<cudaEvent_t, kStreamRooms> free_{};              // by room: its last load was used
  std::vector<std::array<cudaEvent_t, kStreamRooms>> there_;  // by thread and room: its last copy is there

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;               // piece
  std::vector<size_t> enqueued_;  // by load, pieces
  size_t used_ = 0;               // loads of this step whose ops were launched
  int64_t begun_ns_ = 0;          // the step
  int64_t sent_bytes_ = 0;
  bool ends_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> team_;
};

}  // namespace sluice::backend::cuda
