// What one rendering uses: its steps, its depth, its memory, and the containers that it makes.
// Containers live until the rendering ends, so that cycles and deep nests need no care when they go; strings
// go with their last value. All counts are checked before the memory is taken, give or take one small object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

class Heap {
 public:
  Heap(int64_t steps, int depth, size_t memory_bytes, double seconds);
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Counts work. Throws Failure when there has been too much.
  void step(int64_t count = 1) {
    steps_left_ -= count;
    if (steps_left_ < next_look_) look_at_clock();
  }
  /// Counts work on `bytes` bytes of text.
  void pass(size_t bytes) { step(1 + static_cast<int64_t>(bytes / 64)); }

  /// Takes memory. Throws Failure, taking nothing, when there is not that much left.
  void take(size_t bytes) {
    if (bytes > bytes_left_) out_of_memory();
    bytes_left_ -= bytes;
  }
  void give_back(size_t bytes) { bytes_left_ += bytes; }
  /// Throws Failure if `count` objects of `bytes` bytes would not fit; takes nothing.
  void check_room(size_t count, size_t bytes = 1) const {
    if (bytes != 0 && count > bytes_left_ / bytes) out_of_memory();
  }

  Value string(std::string text);
  Value list(std::vector<Value> items, Flavour flavour = Flavour::List);
  Value tuple(std::vector<Value> items) { return list(std::move(items), Flavour::Tuple); }
  Value dict(Dict entries);
  Value name_space(Dict attributes);
  Value function(Function function);
  Value loop(Loop loop);
  /// An undefined value; `why` is what using it says: "'x' is undefined".
  Value undefined(std::string why);

  /// One level of nested work, as long as it lives. Throws Failure at the limit.
  class Level {
   public:
    explicit Level(Heap& heap) : heap_(heap) {
      if (heap.depth_left_ <= 0) too_deep();
      --heap.depth_left_;
    }
    ~Level() { ++heap_.depth_left_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Heap& heap_;
  };

 private:
  StringRef shared(std::string text);
  void look_at_clock();
  [[noreturn]] static void out_of_memory();
  [[noreturn]] static void too_deep();

  int64_t steps_left_;
  int64_t next_look_;  ///< at the clock: when so few steps are left
  int depth_left_;
  size_t bytes_left_;
  double end_;  ///< of this thread's time, in seconds
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> namespaces_;
  std::deque<Function> functions_;
  std::deque<Loop> loops_;
};

/// A string that grows within the memory limit.
class Text {
 public:
  explicit Text(Heap& heap) : heap_(heap) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { heap_.give_back(taken_); }

  void append(std::string_view piece) {
    reserve(piece.size());
    text_.append(piece);
  }
  void append(char byte) {
    reserve(1);
    text_.push_back(byte);
  }
  void append(size_t count, char byte) {
    reserve(count);
    text_.append(count, byte);
  }
  size_t size() const { return text_.size(); }
  const std::string& view() const { return text_; }
  /// The text, and its memory goes to the new owner's account.
  std::string take() {
    heap_.give_back(std::exchange(taken_, 0));
    return std::move(text_);
  }
  Value value() { return heap_.string(take()); }

 private:
  void reserve(size_t bytes) {
    heap_.pass(bytes);
    heap_.take(bytes);
    taken_ += bytes;
  }

  Heap& heap_;
  std::string text_;
  size_t taken_ = 0;
};

}  // namespace sluice::text::jinja
