// MPI between ranks, of OpenMPI's library where it is there: loaded at run time, so that packages and builds
// need none. What is declared here is OpenMPI's binary interface (libmpi.so.40: versions 3 to 5), in which
// handles are addresses; other MPIs have another one and are refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice::backend {

class Mpi {
 public:
  /// Null, and why: the library is not there, or is another MPI's. What started this process has to be its
  /// mpirun, or srun with PMIx.
  static std::unique_ptr<Mpi> load(std::string& why);
  /// Leaves the others; they have to leave, too. Nothing of it after abandon().
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Rank 0's bytes, at every rank.
  void broadcast(std::span<std::byte> bytes) const;
  /// As Channel::gather. Looks now and then whether to go on waiting, and lets others have the processor
  /// meanwhile. False: it was not to go on.
  bool gather(std::span<float> all, std::span<const int64_t> counts, const std::function<bool()>& go_on);
  /// These numbers go to another rank, or come from one; otherwise as gather().
  bool give(int rank, std::span<const float> values, const std::function<bool()>& go_on) const;
  bool take(int rank, std::span<float> values, const std::function<bool()>& go_on) const;
  /// Somebody is gone: no MPI call any more, which would wait for it.
  void abandon() { left_ = true; }

 private:
  struct Functions;
  Mpi();
  bool wait(void* request, const std::function<bool()>& go_on) const;

  std::unique_ptr<Functions> f_;
  int rank_ = 0, ranks_ = 1;
  bool left_ = false;
  std::vector<int> counts_, firsts_;
};

}  // namespace sluice::backend
