#include "engine/engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "engine/batcher.h"

namespace sluice::engine {

namespace {

/// A request on its way from the thread that submitted it to the engine's.
struct Submitted {
  RequestId id;
  Request request;
  std::shared_ptr<Listener> listener;
  int64_t time_ns;
};

/// How often pages are looked after while there is nothing else to do.
constexpr std::chrono::milliseconds kPagesMove{1};

}  // namespace

struct Engine::Impl {
  const EngineOptions options;
  store::PageStore* const page_store;  // null: there is none
  Batcher batcher;                     // the thread's, but for validate()

  mutable std::mutex mutex;
  std::condition_variable woken;    // of the thread: there is something to do
  std::condition_variable settled;  // of drain(): everything has ended
  std::vector<Submitted> inbox;
  std::vector<RequestId> cancels;
  std::vector<std::function<void()>> clears;  // of the cache: whom to tell
  std::atomic<bool> give_up{false};           // the step that runs
  std::atomic<bool> pause{false};             // the long step that runs: somebody came, or went
  RequestId last_id = 0;
  int64_t in_batcher = 0, waiting = 0;  // requests, after the last step
  int64_t just_taken = 0;               // out of the inbox, since then
  bool closed = false, stopping = false;
  std::string broken;  // why no step runs any more; Engine::failure()
  EngineStats stats;

  std::vector<Submitted> taken;  // the thread's: what it took out of the inbox
  std::vector<RequestId> taken_cancels;
  std::vector<std::function<void()>> taken_clears;
  bool rests = false;  // the last step had nothing to do, but maybe to wait for pages
  const program::ExpertCounts* experts = nullptr;  // the executable's, if it has copies of any
  std::thread thread;

  Impl(program::Executable& executable, const text::Tokenizer& tokenizer, const EngineOptions& given,
       store::PageStore* store, events::Sink* sink)
      : options(given),
        page_store(store),
        batcher(executable, tokenizer, given, store, sink),
        experts(dynamic_cast<const program::ExpertCounts*>(&executable)) {
    batcher.snapshot(stats);
    batcher.before_ends([this] {
      const std::lock_guard lock(mutex);
      snapshot();
    });
    thread = std::thread([this] { run(); });
  }

  void run();
  bool take_inbox();
  void begin(Submitted& submitted);
  void step();
  void snapshot();
  void publish();
  bool turn();
  void fail(std::string_view why);
};

// Waits for something to do and takes what came. False: the engine stops.
bool Engine::Impl::take_inbox() {
  std::unique_lock lock(mutex);
  const auto wanted = [this] {
    return stopping || (in_batcher > 0 && !rests) || !inbox.empty() || !cancels.empty() || !clears.empty();
  };
  if (broken.empty() && (rests || in_batcher == 0) && batcher.moves_pages()) {
    woken.wait_for(lock, kPagesMove, wanted);
  } else {
    woken.wait(lock, wanted);
  }
  taken.swap(inbox);
  taken_cancels.swap(cancels);
  taken_clears.swap(clears);
  give_up = stopping;
  pause = false;
  just_taken = std::ssize(taken);
  in_batcher += just_taken;
  return !stopping;
}

void Engine::Impl::begin(Submitted& submitted) {
  const RequestId id = submitted.id;
  const std::shared_ptr<Listener> listener = std::exchange(submitted.listener, nullptr);
  try {
    batcher.add(id, std::move(submitted.request), listener, submitted.time_ns);
  } catch (const std::bad_alloc&) {
    Result result;
    result.finish = Finish::OutOfMemory;
    listener->on_end(id, {}, result);
  }
}

// A device that fails does not come back, and what threw where nothing may leaves nothing to rely on.
void Engine::Impl::fail(std::string_view why) {
  const std::lock_guard lock(mutex);
  closed = true;
  if (broken.empty()) broken = why.empty() ? "for an unknown reason" : why;
}

void Engine::Impl::step() {
  try {
    if (broken.empty()) rests = !batcher.step(&give_up, &pause);
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail({});
  }
  if (!broken.empty()) batcher.end_all(Finish::Error, broken);
}

// With the lock held.
void Engine::Impl::snapshot() {
  batcher.snapshot(stats);
  waiting = batcher.waiting();
  just_taken = 0;
}

void Engine::Impl::publish() {
  const std::lock_guard lock(mutex);
  snapshot();
  in_batcher = batcher.requests();
  if (in_batcher == 0 && inbox.empty()) settled.notify_all();
}

bool Engine::Impl::turn() {
  const bool going = take_inbox();
  for (Submitted& submitted : taken) begin(submitted);
  taken.clear();
  for (const RequestId id : taken_cancels) batcher.cancel(id);
  taken_cancels.clear();
  for (const auto& done : std::exchange(taken_clears, {})) {
    batcher.clear_cache();
    batcher.tell_blocks();
    done();
  }
  if (going) {
    step();
  } else {
    batcher.end_all(Finish::Shutdown);
  }
  batcher.tell_blocks();
  publish();
  return going;
}

void Engine::Impl::run() {
  for (bool going = true; going;) {
    try {
      going = turn();
    } catch (const std::exception& error) {  // outside a step: memory, at worst
      fail(error.what());
    } catch (...) {
      fail({});
    }
    Result lost;
    lost.finish = Finish::Error;
    for (Submitted& submitted : taken)  // none, but for a turn that failed
      if (submitted.listener) submitted.listener->on_end(submitted.id, {}, lost);
    taken.clear();
  }
}

Engine::Engine(program::Executable& executable, const text::Tokenizer& tokenizer,
               const EngineOptions& options, store::PageStore* store, events::Sink* sink)
    : impl_(std::make_unique<Impl>(executable, tokenizer, options, store, sink)) {}

Engine::~Engine() { stop(); }

const EngineOptions& Engine::options() const { return impl_->options; }

RequestId Engine::submit(Request request, std::shared_ptr<Listener> listener) {
  impl_->batcher.validate(request);
  const int64_t now = now_ns();
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->broken.empty()) throw Unavailable("the engine has failed: " + impl_->broken);
  if (impl_->closed) throw Unavailable("the engine is stopping");
  if (impl_->waiting + std::ssize(impl_->inbox) >= impl_->options.max_waiting)
    throw Unavailable(fmt::format("{} requests wait already", impl_->options.max_waiting));
  const RequestId id = ++impl_->last_id;
  impl_->inbox.push_back({id, std::move(request), std::move(listener), now});
  impl_->pause = true;
  impl_->woken.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancels.push_back(id);
  if (impl_->batcher.only_reads(id)) impl_->give_up = true;
  impl_->pause = true;
  impl_->woken.notify_one();
}

void Engine::clear_cache(std::function<void()> done) {
  const std::lock_guard lock(impl_->mutex);
  impl_->clears.push_back(std::move(done));
  impl_->pause = true;
  impl_->woken.notify_one();
}

std::string Engine::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->broken;
}

EngineStats Engine::stats() const {
  EngineStats out;
  {
    const std::lock_guard lock(impl_->mutex);
    out = impl_->stats;
    out.waiting += impl_->just_taken + std::ssize(impl_->inbox);
  }
  // The store works on while the engine rests.
  if (impl_->page_store != nullptr) out.store = impl_->page_store->stats();
  if (impl_->experts != nullptr) out.experts = impl_->experts->expert_use();
  return out;
}

void Engine::close() {
  const std::lock_guard lock(impl_->mutex);
  impl_->closed = true;
}

bool Engine::drain(double seconds) {
  close();
  std::unique_lock lock(impl_->mutex);
  return impl_->settled.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [this] { return impl_->in_batcher == 0 && impl_->inbox.empty(); });
}

void Engine::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
    impl_->stopping = true;
    impl_->give_up = true;
    impl_->woken.notify_one();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace sluice::engine
