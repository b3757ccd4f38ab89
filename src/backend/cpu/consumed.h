// The parts of a model's file that nobody will read again, because they were packed: their pages leave
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace sluice::backend::cpu {

/// The page cache holds files in pieces of up to some megabytes, which leave as a whole or not at all. So
/// every new part is given back together with what lies beside it and was read before; small ones wait for
/// others, because what leaves with them and was not read yet comes from the disk once more.
class Consumed {
 public:
  /// These bytes were read for the last time. Any thread may say so.
  void add(std::span<const std::byte> bytes);
  /// All were said.
  void finish();

 private:
  void join(std::span<const std::byte> bytes);
  std::vector<std::span<const std::byte>> take_kept();

  std::mutex mutex_;
  std::map<const std::byte*, const std::byte*> parts_;  // ends by beginnings; none touches another
  std::vector<std::span<const std::byte>> kept_;        // what still has its pages
  int64_t kept_bytes_ = 0;
};

}  // namespace sluice::backend::cpu
