#include "events/publisher.h"

#include <array>
#include <chrono>
#include <utility>

namespace sluice::events {
namespace {

constexpr size_t kMostWaiting = 10'000;              ///< batches that are not sent yet
constexpr size_t kMostSent = 10'000;                 ///< batches that may be asked for again ...
constexpr size_t kMostSentBytes = size_t{64} << 20;  ///< ... and their bytes
constexpr std::chrono::milliseconds kLook{50};       ///< how often somebody may ask for them
constexpr uint64_t kEnd = ~uint64_t{0};              ///< the number behind the last batch that was asked for

/// As numbers stand in messages.
std::string as_bytes(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFF);
  return bytes;
}

uint64_t number_of(std::string_view bytes) {
  uint64_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

bool is_listened_at(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Publisher::Publisher(const PublisherOptions& options)
    : options_(options),
      publisher_(zmq_, Zmq::Socket::Type::Publisher),
      router_(zmq_, Zmq::Socket::Type::Router) {
  if (is_listened_at(options_.endpoint)) {
    publisher_.bind(options_.endpoint, "--kv-events");
  } else {
    publisher_.connect(options_.endpoint, "--kv-events");
  }
  endpoint_ = publisher_.endpoint();
  if (!options_.replay.empty()) {
    router_.bind(options_.replay, "--kv-events-replay");
    replay_endpoint_ = router_.endpoint();
  }
  thread_ = std::thread([this] { run(); });
}

Publisher::~Publisher() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Publisher::take(std::vector<BlockEvent> events) {
  if (events.empty()) return;
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_number_++;
  if (waiting_.size() >= kMostWaiting) return;
  waiting_.push_back({number, seconds_now(), std::move(events)});
  changed_.notify_one();
}

void Publisher::run() {
  for (bool going = true; going;) {
    std::deque<Batch> batches;
    {
      std::unique_lock lock(mutex_);
      const auto wanted = [this] { return ends_ || !waiting_.empty(); };
      if (options_.replay.empty()) {
        changed_.wait(lock, wanted);
      } else {
        changed_.wait_for(lock, kLook, wanted);
      }
      batches.swap(waiting_);
      going = !ends_;
    }
    for (const Batch& batch : batches) send(batch);
    if (!options_.replay.empty()) answer();
  }
}

void Publisher::send(const Batch& batch) {
  std::string bytes = encode(batch.seconds, batch.events, options_.block_tokens, options_.layout);
  publisher_.send({options_.topic, as_bytes(batch.number), bytes});
  if (options_.replay.empty()) return;
  sent_bytes_ += bytes.size();
  sent_.push_back({batch.number, std::move(bytes)});
  while (sent_.size() > kMostSent || sent_bytes_ > kMostSentBytes) {
    sent_bytes_ -= sent_.front().bytes.size();
    sent_.pop_front();
  }
}

// Who asks says from which number on; the last of the answers has a number of its own and no events.
void Publisher::answer() {
  const std::vector<std::string> request = router_.receive();
  if (request.size() != 3 || request[2].size() != sizeof(uint64_t)) return;
  const std::string& who = request[0];
  const uint64_t from = number_of(request[2]);
  for (const Sent& sent : sent_)
    if (sent.number >= from) router_.send({who, "", as_bytes(sent.number), sent.bytes});
  router_.send({who, "", as_bytes(kEnd), ""});
}

}  // namespace sluice::events
