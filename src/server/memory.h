// What requests hold of memory, together and by client: bodies, what is made of them, answers that nobody has
// read yet. Whoever is about to take much asks here first, and a request for which there is nothing left is
// refused, so that no client takes the memory of the others, or the server's. Knows bytes and names.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace sluice::server {

/// From any thread.
class Memory {
 public:
  static constexpr size_t kDefault = size_t{1} << 30;

  explicit Memory(size_t limit = kDefault) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t limit() const { return limit_; }
  size_t used() const;
  size_t used_by(const std::string& client) const;

 private:
  friend class MemoryShare;
  bool take(const std::string& client, size_t bytes, bool must);
  void give_back(const std::string& client, size_t bytes);

  const size_t limit_;
  mutable std::mutex mutex_;
  size_t used_ = 0;
  std::map<std::string, size_t> clients_;  ///< none has 0
};

/// What one owner holds for a client; given back when it ends. One thread at a time.
class MemoryShare {
 public:
  /// Of nothing: counts nothing and refuses nothing.
  MemoryShare() = default;
  MemoryShare(std::shared_ptr<Memory> memory, std::string client)
      : memory_(std::move(memory)), client_(std::move(client)) {}
  MemoryShare(MemoryShare&& other) noexcept { swap(other); }
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    swap(other);
    return *this;
  }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;
  ~MemoryShare() { set(0); }

  size_t bytes() const { return bytes_; }
  /// Counts so many bytes more. False, and nothing is counted: all clients would hold more than the limit, or
  /// this one more than half of it.
  bool grow(size_t bytes);
  /// Holds so many from now on, whatever the limit says. False: it says that these are too many.
  bool set(size_t bytes);
  /// A share of the same client, with nothing in it.
  MemoryShare sibling() const { return {memory_, client_}; }

 private:
  void swap(MemoryShare& other) noexcept {
    memory_.swap(other.memory_);
    client_.swap(other.client_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<Memory> memory_;
  std::string client_;
  size_t bytes_ = 0;
};

}  // namespace sluice::server
