// Pieces of work of different sizes, dealt out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace sluice::backend::cpu {

/// Who computes which piece: whoever has least to do so far takes the next one. Everybody finds the same.
class Deal {
 public:
  explicit Deal(int workers) : workers_(std::min(workers, static_cast<int>(std::size(load_)))) {}
  int take(int64_t work) {
    const auto least = std::min_element(load_.begin(), load_.begin() + workers_);
    *least += work;
    all_ += work;
    return static_cast<int>(least - load_.begin());
  }
  int64_t busiest() const { return *std::max_element(load_.begin(), load_.begin() + workers_); }
  int64_t all() const { return all_; }

 private:
  std::array<int64_t, 256> load_{};  // more workers than these have nothing to do
  int workers_;
  int64_t all_ = 0;
};

}  // namespace sluice::backend::cpu
