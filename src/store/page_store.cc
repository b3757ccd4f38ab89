#include "store/page_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/check.h"
#include "base/clock.h"

namespace sluice::store {
namespace {

using std::chrono::duration;

constexpr int64_t kStretch = int64_t{256} << 20;  ///< of memory that is taken at once
constexpr int64_t kOnTheirWay = 64 << 20;         ///< of slots at least
constexpr int64_t kLeastSlots = 16;
constexpr int64_t kLook = 30'000'000'000;        ///< ns after which others' files are looked for
constexpr int64_t kRateIsGood = 60'000'000'000;  ///< ns for which a measured rate says something
constexpr double kSecondsAtEnd = 10;             ///< for writing what is to be written

int64_t slots_of(const StoreOptions& options) {
  CHECK(options.slot_bytes > 0, "pages of {} bytes", options.slot_bytes);
  return std::max({options.ram_bytes / options.slot_bytes, kOnTheirWay / options.slot_bytes, kLeastSlots});
}

}  // namespace

PageStore::PageStore(StoreOptions options)
    : options_(std::move(options)), root_(root_key(options_.identity)), most_slots_(slots_of(options_)) {
  if (options_.disk) folder_ = std::make_unique<PageFolder>(*options_.disk, root_, options_.name);
  looked_ns_ = now_ns();
  totals_.ram_limit_bytes = most_slots_ * options_.slot_bytes;
  grower_ = std::thread([this] { grow(); });
  for (int i = 0; folder_ != nullptr && i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

PageStore::~PageStore() {
  flush(kSecondsAtEnd);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  work_.notify_all();
  grower_.join();
  for (std::thread& thread : threads_) thread.join();
}

// Memory that a device copies from and to takes a while to get: nobody waits for it.
void PageStore::grow() {
  const int64_t most = std::max<int64_t>(kStretch / options_.slot_bytes, 1);
  for (int64_t slots = 0; slots < most_slots_;) {
    const int64_t count = std::min(most, most_slots_ - slots);
    try {
      stretches_.push_back(options_.memory(count * options_.slot_bytes));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      most_slots_ = slots;
      totals_.ram_limit_bytes = slots * options_.slot_bytes;
      totals_.problem = fmt::format("memory for pages: {}", error.what());
      return;
    }
    const std::lock_guard lock(mutex_);
    if (ends_) return;
    for (int64_t i = 0; i < count; ++i) {
      free_.push_back(static_cast<Slot>(entries_.size()));
      entries_.emplace_back().data = stretches_.back().get() + i * options_.slot_bytes;
    }
    slots += count;
  }
}

// ------------------------------------------------------------------------- slots: all with the mutex held

bool PageStore::may_leave(const Entry& entry) const {
  return entry.phase == Phase::Ready && entry.holds == 0 && !entry.unwritten;
}

// The slot has changed: it may leave, or may not any more (unsettle).
void PageStore::settle(Slot slot) {
  if (may_leave(entry(slot))) oldest_.emplace(entry(slot).used, slot);
}
void PageStore::unsettle(Slot slot) { oldest_.erase({entry(slot).used, slot}); }

void PageStore::free_slot(Slot slot) {
  Entry& at = entry(slot);
  if (at.phase == Phase::Ready) --ready_, ready_bytes_ -= at.bytes;
  slots_.erase(at.key);
  std::byte* const data = at.data;
  at = {};
  at.data = data;
  free_.push_back(slot);
}

std::optional<PageStore::Slot> PageStore::take_slot(const PageKey& key, Phase phase) {
  if (free_.empty()) {
    if (oldest_.empty()) return std::nullopt;
    const Slot slot = oldest_.begin()->second;
    oldest_.erase(oldest_.begin());
    free_slot(slot);
  }
  const Slot slot = free_.back();
  free_.pop_back();
  Entry& at = entry(slot);
  at.key = key;
  at.phase = phase;
  at.used = ++clock_;
  slots_.emplace(key, slot);
  return slot;
}

// ------------------------------------------------------------------------------------- who brings and wants

PageStore::Place PageStore::find(const PageKey& key) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key);
    if (found != slots_.end() && entry(found->second).phase == Phase::Ready) return Place::Memory;
  }
  return folder_ != nullptr && folder_->holds(key) ? Place::Disk : Place::None;
}

std::optional<PageStore::Slot> PageStore::begin(const PageKey& key) {
  const std::lock_guard lock(mutex_);
  // Some slots are left to those who want pages.
  if (slots_.contains(key) || unwritten_ >= most_slots_ * 3 / 4) return std::nullopt;
  const std::optional<Slot> slot = take_slot(key, Phase::Filling);
  if (slot) ++unwritten_;
  return slot;
}

void PageStore::fill(Slot slot, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    Entry& at = entry(slot);
    CHECK(at.phase == Phase::Filling && bytes <= options_.slot_bytes, "slot {}", slot);
    at.phase = Phase::Ready;
    at.bytes = bytes;
    ++ready_, ready_bytes_ += bytes;
    ++totals_.kept_total;
    at.unwritten = folder_ != nullptr;
    if (at.unwritten) {
      writes_.push_back(slot);
    } else {
      --unwritten_;
    }
    settle(slot);
  }
  work_.notify_one();
}

void PageStore::give_up(Slot slot) {
  const std::lock_guard lock(mutex_);
  CHECK(entry(slot).phase == Phase::Filling, "slot {}", slot);
  --unwritten_;
  free_slot(slot);
}

PageStore::Held PageStore::hold(const PageKey& key, int64_t bytes) {
  const bool on_disk = folder_ != nullptr && folder_->holds(key);
  std::unique_lock lock(mutex_);
  const auto found = slots_.find(key);
  if (found != slots_.end()) {
    const Slot slot = found->second;
    Entry& at = entry(slot);
    if (at.phase == Phase::Filling) return {State::NoRoom};
    if (at.phase == Phase::Missing || at.bytes != bytes) return {};
    unsettle(slot);
    ++at.holds;
    at.used = ++clock_;
    return {at.phase == Phase::Ready ? State::Ready : State::Reading, slot};
  }
  if (!on_disk) return {};
  const std::optional<Slot> slot = take_slot(key, Phase::Reading);
  if (!slot) return {State::NoRoom};
  entry(*slot).holds = 1;
  entry(*slot).bytes = bytes;
  reads_.push_back(*slot);
  lock.unlock();
  work_.notify_one();
  return {State::Reading, *slot};
}

PageStore::State PageStore::state(Slot slot) const {
  const std::lock_guard lock(mutex_);
  switch (entry(slot).phase) {
    case Phase::Ready: return State::Ready;
    case Phase::Reading: return State::Reading;
    default: return State::Absent;
  }
}

void PageStore::release(Slot slot) {
  const std::lock_guard lock(mutex_);
  Entry& at = entry(slot);
  CHECK(at.holds > 0, "slot {}", slot);
  if (--at.holds > 0) return;
  if (at.phase == Phase::Missing) return free_slot(slot);
  settle(slot);
}

std::span<std::byte> PageStore::bytes(Slot slot) const {
  const std::lock_guard lock(mutex_);
  return {entry(slot).data, static_cast<size_t>(options_.slot_bytes)};
}

void PageStore::touch(const PageKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(key);
  if (found == slots_.end()) return;
  unsettle(found->second);
  entry(found->second).used = ++clock_;
  settle(found->second);
}

void PageStore::clear() {
  {
    const std::lock_guard lock(mutex_);
    ++clears_;
    for (const Slot slot : writes_) {
      --unwritten_;
      entry(slot).unwritten = false;
      settle(slot);
    }
    writes_.clear();
    while (!oldest_.empty()) {
      const Slot slot = oldest_.begin()->second;
      oldest_.erase(oldest_.begin());
      free_slot(slot);
    }
  }
  if (folder_ != nullptr) folder_->clear();
}

StoreStats PageStore::stats() const {
  const PageFolder::Stats disk = folder_ != nullptr ? folder_->stats() : PageFolder::Stats{};
  const std::lock_guard lock(mutex_);
  StoreStats stats = totals_;
  stats.ram_pages = ready_;
  stats.ram_bytes = ready_bytes_;
  stats.disk_pages = disk.pages;
  stats.disk_bytes = disk.bytes;
  stats.disk_all_bytes = disk.all_bytes;
  stats.disk_limit_bytes = disk.limit_bytes;
  stats.damaged_total = disk.damaged;
  if (!disk.problem.empty()) stats.problem = disk.problem;
  return stats;
}

double PageStore::read_seconds_per_byte() const {
  const std::lock_guard lock(mutex_);
  return now_ns() - last_read_ns_ < kRateIsGood ? read_seconds_per_byte_ : 0;
}

bool PageStore::flush(double seconds) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, duration<double>(seconds), [this] { return unwritten_ == 0; });
}

// ------------------------------------------------------------------------------------------------- threads

// What is wanted comes first.
void PageStore::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (ends_) return;
    if (!reads_.empty()) {
      const Slot slot = reads_.front();
      reads_.pop_front();
      read(lock, slot);
    } else if (!writes_.empty()) {
      const Slot slot = writes_.front();
      writes_.pop_front();
      write(lock, slot);
    } else if (!looking_ && now_ns() - looked_ns_ > kLook) {
      looking_ = true;
      lock.unlock();
      folder_->look();
      lock.lock();
      looking_ = false;
      looked_ns_ = now_ns();
    } else {
      work_.wait_for(lock, duration<double>(10));
    }
  }
}

void PageStore::read(std::unique_lock<std::mutex>& lock, Slot slot) {
  const Entry of = entry(slot);
  lock.unlock();
  const int64_t begin = now_ns();
  const bool is_there = folder_->read(of.key, {of.data, static_cast<size_t>(of.bytes)});
  const int64_t end = now_ns();
  lock.lock();
  Entry& at = entry(slot);
  at.phase = is_there ? Phase::Ready : Phase::Missing;
  if (is_there) {
    const double rate = 1e-9 * static_cast<double>(end - begin) / static_cast<double>(of.bytes) /
                        std::max(options_.threads, 1);
    read_seconds_per_byte_ = read_seconds_per_byte_ > 0 ? 0.9 * read_seconds_per_byte_ + 0.1 * rate : rate;
    last_read_ns_ = end;
    ++totals_.read_total;
    ++ready_, ready_bytes_ += at.bytes;
    settle(slot);
  } else if (at.holds == 0) {
    free_slot(slot);
  }
}

void PageStore::write(std::unique_lock<std::mutex>& lock, Slot slot) {
  Entry& at = entry(slot);
  const Entry of = at;
  ++at.holds;  // it does not go meanwhile
  const uint64_t clears = clears_;
  lock.unlock();
  const bool written = folder_->write(of.key, {of.data, static_cast<size_t>(of.bytes)});
  lock.lock();
  if (clears != clears_) folder_->remove(of.key);  // what was forgotten meanwhile does not come back
  --at.holds;
  at.unwritten = false;
  if (written) {
    ++totals_.written_total;
  } else {
    ++totals_.lost_total;
  }
  settle(slot);
  if (--unwritten_ == 0) written_.notify_all();
}

}  // namespace sluice::store
