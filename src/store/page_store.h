// Pages of a prompt cache behind the device's own: in the host's memory, and in a folder of a disk. Pages are
// bytes under keys (page_key.h) in slots of memory; the store's threads write them to the folder behind those
// who bring them, and read them from it ahead of those who want them. Nobody else waits for a disk.
//
// A slot is being filled by its owner, or has a page. One that has may be held; those that nobody holds and
// that need not be written any more give way, the one used longest ago first.
//
// Knows bytes and keys; no tokens, no device. Of any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/page_folder.h"
#include "store/page_key.h"

namespace sluice::store {

struct StoreOptions {
  std::string identity;  ///< of the model and of what its pages' bytes mean: others are never taken for them
  std::string name;      ///< of the model, for people
  int64_t slot_bytes = 0;                  ///< of a page at most
  int64_t ram_bytes = 0;                   ///< of slots; there are some in any case, for what is on its way
  std::optional<FolderOptions> disk = {};  ///< none: pages are in memory alone
  int threads = 1;                         ///< that read and write
  /// Where slots lie, a stretch of them at a time; it throws where there is no more.
  std::function<std::shared_ptr<std::byte[]>(int64_t)> memory;
};

/// What is where. Totals count from the store's beginning.
struct StoreStats {
  int64_t ram_pages = 0, ram_bytes = 0, ram_limit_bytes = 0;
  int64_t disk_pages = 0, disk_bytes = 0;  ///< this model's
  int64_t disk_all_bytes = 0, disk_limit_bytes = 0;
  int64_t kept_total = 0;     ///< pages that came in
  int64_t written_total = 0;  ///< to the disk
  int64_t read_total = 0;     ///< from the disk
  int64_t damaged_total = 0;  ///< files that were not what had been written
  int64_t lost_total = 0;     ///< pages that the disk would not take
  std::string problem;        ///< why; empty: it takes them
};

class PageStore {
 public:
  /// Names a slot, for as long as somebody fills or holds it.
  using Slot = int32_t;
  /// NoRoom: not now; all slots are in use.
  enum class State : uint8_t { Absent, NoRoom, Reading, Ready };
  enum class Place : uint8_t { None, Memory, Disk };

  /// Looks what the folder has. Throws what PageFolder does.
  explicit PageStore(StoreOptions options);
  /// Writes what is to be written, for some seconds at most.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  const PageKey& root() const { return root_; }
  bool has_disk() const { return folder_ != nullptr; }
  Place find(const PageKey& key) const;

  /// A slot to be filled with a page that is in no slot. None: there is no room just now, or no need.
  std::optional<Slot> begin(const PageKey& key);
  /// It is filled, with so many bytes; from now on they belong to the store.
  void fill(Slot slot, int64_t bytes);
  /// It will not be.
  void give_up(Slot slot);

  /// Holds a page's slot (Ready, Reading: see ready()), whose page has so many bytes.
  struct Held {
    State state = State::Absent;
    Slot slot = -1;
  };
  Held hold(const PageKey& key, int64_t bytes);
  /// Of a slot that is held: Reading, Ready, or Absent: there was no such page after all.
  State state(Slot slot) const;
  void release(Slot slot);
  std::span<std::byte> bytes(Slot slot) const;

  /// Somebody has given up the page, so that it is worth more here.
  void touch(const PageKey& key);
  /// Forgets all pages that nobody holds, and this model's on the disk.
  void clear();
  StoreStats stats() const;
  /// Seconds that reading a byte from the disk took lately; 0: nothing was read for a while.
  double read_seconds_per_byte() const;
  /// Waits until all is written, or so many seconds. Whether it is.
  bool flush(double seconds);

 private:
  enum class Phase : uint8_t { Free, Filling, Reading, Ready, Missing };
  struct Entry {
    PageKey key;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    Phase phase = Phase::Free;
    bool unwritten = false;
    int holds = 0;
    uint64_t used = 0;  ///< a running number
  };
  Entry& entry(Slot slot) { return entries_[static_cast<size_t>(slot)]; }
  const Entry& entry(Slot slot) const { return entries_[static_cast<size_t>(slot)]; }
  std::optional<Slot> take_slot(const PageKey& key, Phase phase);
  bool may_leave(const Entry& entry) const;
  void settle(Slot slot);
  void unsettle(Slot slot);
  void free_slot(Slot slot);
  void grow();
  void work();
  void read(std::unique_lock<std::mutex>& lock, Slot slot);
  void write(std::unique_lock<std::mutex>& lock, Slot slot);

  const StoreOptions options_;
  const PageKey root_;
  int64_t most_slots_;
  std::unique_ptr<PageFolder> folder_;  // null: there is no disk
  mutable std::mutex mutex_;            // of all that follows, but for stretches_
  std::condition_variable work_;        // there is something to read or write, or it ends
  std::condition_variable written_;     // of flush()
  std::deque<Entry> entries_;
  std::unordered_map<PageKey, Slot, PageKeyHash> slots_;
  std::vector<Slot> free_;
  std::set<std::pair<uint64_t, Slot>> oldest_;  // that may leave, by when they were used
  std::deque<Slot> reads_, writes_;
  int64_t unwritten_ = 0, ready_ = 0, ready_bytes_ = 0;  // slots; bytes
  uint64_t clock_ = 0, clears_ = 0;
  StoreStats totals_;
  double read_seconds_per_byte_ = 0;
  int64_t last_read_ns_ = 0;
  bool looking_ = false, ends_ = false;
  int64_t looked_ns_ = 0;
  std::vector<std::shared_ptr<std::byte[]>> stretches_;  // the grower's
  std::vector<std::thread> threads_;
  std::thread grower_;
};

}  // namespace sluice::store
