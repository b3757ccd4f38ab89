// Publishes events of a cache over ZeroMQ, as vLLM does: each batch is a message of three parts, a topic, its
// number (8 bytes, the first one first) and the events. Whoever finds a number left out has missed something,
// and may ask for what was sent lately at a second address.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "events/block_event.h"
#include "events/zmq.h"

namespace sluice::events {

struct PublisherOptions {
  /// Where to publish. An address with a * or ::, or of ipc, is listened at, as in tcp://*:5557; with any
  /// other a connection is made to who listens there.
  std::string endpoint;
  std::string replay;  ///< where to listen for who asks for earlier batches; empty: nowhere
  std::string topic;
  int64_t block_tokens = 64;
  Layout layout = Layout::Arrays;
};

class Publisher : public Sink {
 public:
  /// Throws Error when an address is wrong or taken, or libzmq is not there.
  explicit Publisher(const PublisherOptions& options);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  /// Sends what was taken.
  ~Publisher() override;

  /// Where batches take more room than there is, some are left out, and their numbers are missing.
  void take(std::vector<BlockEvent> events) override;
  /// Where it publishes, and where it listens for who missed something.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  struct Batch {
    uint64_t number;
    double seconds;
    std::vector<BlockEvent> events;
  };
  struct Sent {
    uint64_t number;
    std::string bytes;
  };

  void run();
  void send(const Batch& batch);
  void answer();

  const PublisherOptions options_;
  Zmq zmq_;
  Zmq::Socket publisher_, router_;
  std::string endpoint_, replay_endpoint_;
  std::deque<Sent> sent_;  // lately; the thread's
  size_t sent_bytes_ = 0;
  std::mutex mutex_;  // over what follows
  std::condition_variable changed_;
  std::deque<Batch> waiting_;
  uint64_t next_number_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace sluice::events
