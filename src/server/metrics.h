// What the server counts, and its text for Prometheus. Counting is lock-free: tokens are counted on the
// engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"

namespace sluice::server {

/// Counts values by upper bounds, in seconds.
class Histogram {
 public:
  static constexpr std::array<double, 19> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 30, 120};
  void add_ns(int64_t ns);
  /// Lines of Prometheus' text format.
  void print(std::string& out, const char* name, const char* help) const;

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

struct Metrics {
  Histogram time_to_first_token;  ///< from the arrival at the engine
  Histogram inter_token;
  Histogram request_duration;  ///< from the request's body to the answer's end
  Histogram queue_time;
  std::atomic<int64_t> http_requests{0};
  std::array<std::atomic<int64_t>, 6> http_responses{};  ///< by the first digit of the status

  /// `engine` may be null: the model is still loading.
  std::string text(const engine::Engine* engine, size_t connections, size_t memory_bytes,
                   size_t memory_limit) const;
};

}  // namespace sluice::server
