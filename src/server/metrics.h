// What the server counts, and its text for Prometheus. Counting is lock-free: tokens are counted on the
// engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/service.h"

namespace sluice::server {

/// Counts values by upper bounds, in seconds.
class Histogram {
 public:
  static constexpr std::array<double, 19> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 30, 120};
  void add_ns(int64_t ns);
  void add(const Histogram& other);
  /// Its samples in Prometheus' text format. `labels`: of each, as in `model_name="a"`; may be empty.
  void print(std::string& out, std::string_view name, const std::string& labels) const;

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

/// How long the requests of one model took.
struct RequestTimes {
  Histogram time_to_first_token;  ///< from the arrival at the engine
  Histogram inter_token;
  Histogram request_duration;  ///< from the request's body to the answer's end
  Histogram queue_time;
};

/// By whose names /metrics tells what it tells: this server's, or those that vLLM has for the same things,
/// which routers and dashboards know.
enum class MetricNames : uint8_t { Sluice, Vllm, Both };

class Metrics {
 public:
  std::atomic<int64_t> http_requests{0};
  std::array<std::atomic<int64_t>, 6> http_responses{};  ///< by the first digit of the status

  /// Those of the model of this name; they stay where they are. From any thread.
  RequestTimes& times(const std::string& model);

  struct View {
    /// That are loaded, the one used last first; none: it is still loading.
    std::vector<std::shared_ptr<const Service>> models;
    size_t connections = 0, memory_bytes = 0, memory_limit = 0;
    bool ready = false;  ///< takes requests
  };
  std::string text(const View& view, MetricNames names) const;

 private:
  void own_names(std::string& out, const View& view) const;
  void vllm_names(std::string& out, const View& view) const;

  mutable std::mutex mutex_;  // over the map, not its values
  std::map<std::string, RequestTimes> times_;
};

}  // namespace sluice::server
