// The parts of a model's file that nobody will read again, because they were packed: their pages leave
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

namespace sluice::backend::cpu {

/// The page cache holds files in pieces of up to some megabytes, which leave as a whole or not at all. So
/// every new part is given back together with what lies beside it and was read before.
class Consumed {
 public:
  /// These bytes were read for the last time. Any thread may say so.
  void add(std::span<const std::byte> bytes);

 private:
  std::mutex mutex_;
  std::map<const std::byte*, const std::byte*> parts_;  // ends by beginnings; none touches another
};

}  // namespace sluice::backend::cpu
