// A server on a free port, in this process, whose model says what a test tells it to.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "server/server.h"
#include "support/script_executable.h"

namespace sluice::test {

/// Says the bytes of a reply to whoever asks, one sequence like the other, then the end token. One with
/// states keeps in a sequence's state, and in its pages for every row, a hash of all tokens so far: whatever
/// is taken over, both say the same.
class Parrot : public Speaker {
 public:
  explicit Parrot(bool states = false) : Speaker(states) {}
  void say(std::string reply, std::chrono::microseconds per_step = {}) {
    const std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
    per_step_ = per_step;
    places_.clear();
    steps_ = 0;
  }
  int64_t steps() const { return steps_; }
  int64_t right_states() const { return right_states_; }
  int64_t wrong_states() const { return wrong_states_; }
  std::atomic<bool> hold = false;   ///< steps wait until it is false
  std::atomic<bool> fails = false;  ///< as a device does

  void run(const program::Step& step, Said& said) override {
    if (fails) throw Error("the device is gone");
    const program::StepInput& input = step.input;
    std::chrono::microseconds per_step;
    {
      const std::lock_guard lock(mutex_);
      ++steps_;
      per_step = per_step_;
      if (program().has_states()) keep_states(input);
      for (int64_t i = 0; i < input.outputs(); ++i) {
        const auto row = static_cast<size_t>(input.output_rows[static_cast<size_t>(i)]);
        Place& place = places_[input.sequences[row]];
        if (place.position + 1 != input.positions[row]) place.bytes = 0;
        place.position = input.positions[row];
        put(said, i, reply_, place.bytes++);
      }
    }
    if (per_step.count() > 0) std::this_thread::sleep_for(per_step);
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  void keep_states(const program::StepInput& input) {
    for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
      end = input.end_of_sequence(first);
      const auto row = static_cast<size_t>(first);
      const program::StateSlots slots = input.states[static_cast<size_t>(input.sequences[row])];
      const int32_t begin = input.positions[row];
      uint64_t hash = begin == 0 ? 0 : states_[slots.from];
      if (begin > 0) ++(hash == rows_[input.slot_of(first, begin - 1)] ? right_states_ : wrong_states_);
      for (auto r = row; r < static_cast<size_t>(end); ++r) {
        hash = (hash ^ static_cast<uint64_t>(input.tokens[r] + 1)) * 0x9E3779B97F4A7C15u + r - row + begin;
        rows_[input.slots[r]] = hash;
      }
      states_[slots.to] = hash;
    }
  }

  struct Place {
    int32_t position = -2;
    size_t bytes = 0;
  };
  std::mutex mutex_;
  std::string reply_;
  std::chrono::microseconds per_step_{};
  std::map<int32_t, Place> places_;
  std::unordered_map<int32_t, uint64_t> states_;  // by slot
  std::unordered_map<int64_t, uint64_t> rows_;    // by slot of the paged cache
  std::atomic<int64_t> steps_{0}, right_states_{0}, wrong_states_{0};
};

inline server::ServerOptions quick_server() {
  server::ServerOptions options;
  options.http.port = 0;
  options.http.tick = std::chrono::milliseconds(10);
  options.http.ping_interval = std::chrono::milliseconds(200);
  options.workers = 2;
  return options;
}

/// A server with the parrot, a chat template (of tests/text/templates) and a vocabulary of bytes.
class ParrotServer {
 public:
  explicit ParrotServer(server::ServerOptions options = quick_server(),
                        engine::EngineOptions engine = small(),
                        const std::string& chat_template = "GLM-4.7-Flash", bool states = false)
      : parrot(states),
        tokenizer_(byte_tokenizer()),
        chat_(read_file(SLUICE_SOURCE_DIR "/tests/text/templates/" + chat_template + ".jinja"), "", "",
              text::ControlTokens(tokenizer_)),
        engine_(parrot, tokenizer_, engine),
        service_{engine_, tokenizer_} {
    service_.chat = &chat_;
    service_.constraints = std::make_shared<text::ConstraintVocabulary>(tokenizer_);
    service_.model_id = "parrot";
    service_.sampling.temperature = 0;
    service_.trained_context = 8192;
    server.emplace(std::move(options));
    server->ready(service_);
  }
  ~ParrotServer() {
    parrot.hold = false;
    engine_.stop();
    server.reset();
  }
  ParrotServer(const ParrotServer&) = delete;
  ParrotServer& operator=(const ParrotServer&) = delete;

  static engine::EngineOptions small() {
    engine::EngineOptions options;
    options.context = 4096;
    options.max_sequences = 8;
    options.pages = 256;
    return options;
  }
  uint16_t port() const { return server->port(); }
  engine::Engine& engine() { return engine_; }
  const server::Service& service() const { return service_; }
  server::Service& service() { return service_; }  ///< to be changed before the first request

  Parrot parrot;
  std::optional<server::Server> server;

 private:
  text::Tokenizer tokenizer_;
  text::ChatTemplate chat_;
  engine::Engine engine_;
  server::Service service_;
};

}  // namespace sluice::test
