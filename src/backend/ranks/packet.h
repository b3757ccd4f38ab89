// What ranks write to each other: numbers, texts and lists one behind the other, in this machine's order of
// bytes. Reading checks every length: a connection may be anybody's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace sluice::backend {

class Packet {
 public:
  Packet& add(int64_t number) { return bytes(&number, sizeof number); }
  Packet& add(double number) { return bytes(&number, sizeof number); }
  Packet& add(std::string_view text) {
    return add(static_cast<int64_t>(text.size())).bytes(text.data(), text.size());
  }
  template <typename T>
  Packet& add_list(std::span<const T> list) {
    static_assert(std::is_trivially_copyable_v<T>);
    return add(static_cast<int64_t>(list.size())).bytes(list.data(), list.size_bytes());
  }
  void clear() { data_.clear(); }
  std::span<const std::byte> data() const { return data_; }

 private:
  Packet& bytes(const void* from, size_t count) {
    const size_t before = data_.size();
    data_.resize(before + count);
    if (count > 0) std::memcpy(data_.data() + before, from, count);
    return *this;
  }
  std::vector<std::byte> data_;
};

/// Reads a packet in the order in which it was written. Throws Error where it is too short.
class PacketReader {
 public:
  explicit PacketReader(std::span<const std::byte> data) : rest_(data) {}

  int64_t number() { return value<int64_t>(); }
  double real() { return value<double>(); }
  std::string text() {
    const std::span<const std::byte> bytes = take(count_of(1));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <typename T>
  void list(std::vector<T>& to) {
    static_assert(std::is_trivially_copyable_v<T>);
    to.resize(count_of(sizeof(T)));
    const std::span<const std::byte> bytes = take(to.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  }

 private:
  template <typename T>
  T value() {
    T result;
    std::memcpy(&result, take(sizeof(T)).data(), sizeof(T));
    return result;
  }
  size_t count_of(size_t each) {
    const int64_t count = number();
    if (count < 0 || static_cast<uint64_t>(count) > rest_.size() / each) short_packet();
    return static_cast<size_t>(count);
  }
  std::span<const std::byte> take(size_t count) {
    if (count > rest_.size()) short_packet();
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  [[noreturn]] static void short_packet() { fail("a packet of another rank is too short"); }

  std::span<const std::byte> rest_;
};

}  // namespace sluice::backend
