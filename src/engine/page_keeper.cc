#include "engine/page_keeper.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace sluice::engine {

using program::Kept;
using program::kPageRows;
using store::PageKey;
using State = store::PageStore::State;
using Place = store::PageStore::Place;

namespace {

constexpr size_t kMostComing = 4;  ///< sequences at once whose pages are brought
constexpr size_t kWindow = 32;     ///< pages of one that are on their way at once
/// Of a step's time, what copies may take between it and the next: a page goes or comes in any case.
constexpr double kSendShare = 0.02, kReceiveShare = 0.08;
constexpr double kEver = 1e9;
constexpr int64_t kLeastRows = 32;   ///< of prompts in a step that tells how long computing takes
constexpr double kSecondsAtEnd = 5;  ///< for sending what is complete

double now_seconds() { return 1e-9 * static_cast<double>(now_ns()); }

std::span<const int32_t> page_tokens(const Sequence& sequence, size_t page) {
  return std::span(sequence.tokens).subspan(page * kPageRows, kPageRows);
}

void average(double& mean, double value) { mean = mean > 0 ? 0.9 * mean + 0.1 * value : value; }

}  // namespace

bool bringing_pays(const PageRates& rates, int64_t pages, int64_t pages_on_disk, int64_t page_bytes) {
  if (rates.compute_seconds_per_row <= 0) return true;
  const double bytes = static_cast<double>(page_bytes);
  const double bring = bytes * (static_cast<double>(pages_on_disk) * rates.read_seconds_per_byte +
                                static_cast<double>(pages) * rates.copy_seconds_per_byte);
  return bring < static_cast<double>(pages * kPageRows) * rates.compute_seconds_per_row;
}

PageKeeper::PageKeeper(program::PageCopier& copier, store::PageStore& store, KvCache& cache)
    : copier_(copier),
      store_(store),
      cache_(cache),
      page_bytes_(copier.bytes(Kept::Page)),
      state_bytes_(copier.bytes(Kept::State)) {
  cache_.watch(*this);
}

PageKeeper::~PageKeeper() {
  cache_.unwatch(*this);
  while (!coming_.empty()) drop(*coming_.front().sequence);
  try {
    const double end = now_seconds() + kSecondsAtEnd;
    while (busy() && now_seconds() < end) {
      advance(0);
      if (busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    end_copies_out(true);
  } catch (const std::exception&) {  // the device has failed, and said so in a step
    for (const Leaving& leaving : leaving_) store_.give_up(leaving.slot);
  }
}

std::optional<PageKey> PageKeeper::key_of(int32_t page) const {
  if (page == PrefixTree::kRoot) return store_.root();
  return page < std::ssize(keys_) ? keys_[static_cast<size_t>(page)] : std::nullopt;
}

PageKey& PageKeeper::remember(int32_t page, const PageKey& key) {
  if (page >= std::ssize(keys_)) keys_.resize(static_cast<size_t>(page) + 1);
  return keys_[static_cast<size_t>(page)].emplace(key);
}

// ------------------------------------------------------------------------------------- pages that come and
// go

void PageKeeper::entered(int32_t parent, int32_t page, std::span<const int32_t> tokens, uint64_t group) {
  const std::optional<PageKey> before = key_of(parent);
  CHECK(before, "page {}", parent);
  remember(page, store::page_key(*before, group, tokens));
  if (store_.has_disk()) pending_.push_back(page);  // those that came from the store are found to be there
}

void PageKeeper::leaves(int32_t page) {
  const std::optional<PageKey> key = key_of(page);
  if (!key) return;  // unfinished
  bool is_leaving = std::ranges::find(leaving_, page, &Leaving::page) != leaving_.end();
  if (!is_leaving && !forgets_) {
    if (store_.find(*key) == Place::None) {
      is_leaving = copy_out(page);
    } else {
      store_.touch(*key);
    }
  }
  if (is_leaving) end_copies_out(true);  // whoever has the page next writes to it
  keys_[static_cast<size_t>(page)].reset();
}

void PageKeeper::snapshot(int32_t page, int32_t slot) {
  const std::optional<PageKey> key = key_of(page);
  CHECK(key, "page {}", page);
  const PageKey state = store::state_key(*key);
  if (store_.find(state) != Place::None) return;
  const auto place = store_.begin(state);
  if (!place) return;
  copier_.wait(copier_.begin_read(Kept::State, slot, store_.bytes(*place).data()));
  store_.fill(*place, state_bytes_);
}

// Begins to copy a page to the store. False: there is no room just now.
bool PageKeeper::copy_out(int32_t page) {
  const auto slot = store_.begin(*key_of(page));
  if (!slot) return false;
  leaving_.push_back({page, *slot, copier_.begin_read(Kept::Page, page, store_.bytes(*slot).data())});
  return true;
}

void PageKeeper::end_copies_out(bool wait) {
  while (!leaving_.empty()) {
    const Leaving& first = leaving_.front();
    if (wait) copier_.wait(first.copy);
    if (!wait && !copier_.ended(first.copy)) return;
    store_.fill(first.slot, page_bytes_);
    leaving_.pop_front();
  }
}

// At least a page, if there is one.
void PageKeeper::send(double seconds) {
  const double until = now_seconds() + seconds;
  while (!pending_.empty()) {
    const int32_t page = pending_.front();
    const std::optional<PageKey> key = key_of(page);
    const bool is_leaving = std::ranges::find(leaving_, page, &Leaving::page) != leaving_.end();
    const bool wanted = key && !is_leaving && store_.find(*key) == Place::None;
    if (wanted && !copy_out(page)) return;
    pending_.pop_front();
    if (now_seconds() >= until) return;
  }
}

void PageKeeper::observe(int64_t prompt_rows, double seconds) {
  if (prompt_rows >= kLeastRows)
    average(rates_.compute_seconds_per_row, seconds / static_cast<double>(prompt_rows));
}

void PageKeeper::advance(double step_seconds) {
  end_copies_out(false);
  send(step_seconds > 0 ? kSendShare * step_seconds : kEver);
  const double until = now_seconds() + (step_seconds > 0 ? kReceiveShare * step_seconds : kEver);
  for (auto coming = coming_.begin(); coming != coming_.end();) receive(*coming++, until);
}

void PageKeeper::clear() {
  while (!coming_.empty()) drop(*coming_.front().sequence);
  end_copies_out(true);
  pending_.clear();
  forgets_ = true;
  cache_.clear();
  forgets_ = false;
  store_.clear();
}

// --------------------------------------------------------------------------------------------- bringing
// pages

bool PageKeeper::bring(Sequence& sequence, std::span<const int32_t> known, int64_t running) {
  sequence.brought = Brought::Done;
  chain_.clear();
  cache_.find(known, chain_, sequence.group);
  const size_t whole = (known.size() - 1) / kPageRows;
  const size_t first = chain_.size();
  if (first >= whole) return bring_lost_snapshot(sequence, running);
  const int32_t parent = first > 0 ? chain_.back() : PrefixTree::kRoot;
  const auto key_behind = [&](const PageKey& before, size_t page) {
    return store::page_key(before, sequence.group.pages, page_tokens(sequence, page));
  };
  PageKey key = key_behind(*key_of(parent), first);
  if (store_.find(key) == Place::None) return bring_lost_snapshot(sequence, running);
  const auto has = [&key](const Coming& coming) {
    return std::ranges::find(coming.keys, key) != coming.keys.end();
  };
  if (coming_.size() >= kMostComing || std::ranges::any_of(coming_, has)) {
    sequence.brought = Brought::Unasked;
    return true;
  }
  std::vector<PageKey> keys;
  int64_t on_disk = 0;
  for (size_t page = first; page < whole; key = ++page < whole ? key_behind(key, page) : key) {
    const Place place = store_.find(key);
    if (place == Place::None) break;
    on_disk += place == Place::Disk;
    keys.push_back(key);
  }
  while (cache_.has_states() && !keys.empty() && store_.find(store::state_key(keys.back())) == Place::None)
    keys.pop_back();
  rates_.read_seconds_per_byte = store_.read_seconds_per_byte();
  if (keys.empty()) return bring_lost_snapshot(sequence, running);
  if (!bringing_pays(rates_, std::ssize(keys), on_disk, page_bytes_)) return false;
  return begin({&sequence, running, std::move(keys), first, parent});
}

// Of pages in the tree (chain_) the last snapshot that the store has, where the device has given it up.
bool PageKeeper::bring_lost_snapshot(Sequence& sequence, int64_t running) {
  if (!cache_.has_states()) return false;
  const auto lost = [this](size_t pages) { return pages > 0 && !cache_.has_snapshot(chain_[pages - 1]); };
  size_t pages = chain_.size();
  Place place = Place::None;
  for (; lost(pages); --pages) {
    place = store_.find(store::state_key(*key_of(chain_[pages - 1])));
    if (place != Place::None) break;
  }
  if (place == Place::None) return false;
  size_t there = pages - 1;
  while (lost(there)) --there;
  const auto saved = static_cast<int64_t>(pages - there);
  rates_.read_seconds_per_byte = store_.read_seconds_per_byte();
  if (!bringing_pays(rates_, saved, place == Place::Disk ? saved : 0, state_bytes_ / saved)) return false;
  if (coming_.size() >= kMostComing) {
    sequence.brought = Brought::Unasked;
    return true;
  }
  return begin({&sequence, running, {}, pages, chain_[pages - 1]});
}

// Whether the sequence is to wait.
bool PageKeeper::begin(Coming coming) {
  cache_.hold(coming.parent);
  coming_.push_back(std::move(coming));
  Sequence& sequence = *coming_.back().sequence;
  sequence.brought = Brought::Coming;
  receive(coming_.back(), now_seconds());
  return sequence.brought == Brought::Coming;
}

// Goes on with a sequence's pages: those whose copies have ended enter the tree, others begin theirs, and
// more are asked for.
void PageKeeper::receive(Coming& coming, double until_seconds) {
  while (!coming.arriving.empty() && coming.arriving.front().page != PrefixTree::kRoot &&
         copier_.ended(coming.arriving.front().copy)) {
    const Arriving& first = coming.arriving.front();
    const auto tokens = page_tokens(*coming.sequence, coming.first + coming.done);
    coming.parent = cache_.adopt(coming.parent, tokens, first.page, coming.sequence->group.pages);
    store_.release(first.slot);
    coming.arriving.pop_front();
    ++coming.done;
    ++brought_total_;
  }
  ask(coming);
  place(coming, until_seconds);
  if (coming.done == coming.keys.size() && bring_snapshot(coming)) end(coming);
}

void PageKeeper::ask(Coming& coming) {
  while (coming.asked < coming.keys.size() && coming.arriving.size() < kWindow) {
    const auto held = store_.hold(coming.keys[coming.asked], page_bytes_);
    if (held.state == State::NoRoom) return;
    if (held.state == State::Absent) return cut(coming, coming.asked);
    coming.arriving.push_back({held.slot});
    ++coming.asked;
  }
}

void PageKeeper::place(Coming& coming, double until_seconds) {
  for (; coming.placed < coming.asked; ++coming.placed) {
    Arriving& next = coming.arriving[coming.placed - coming.done];
    const State state = store_.state(next.slot);
    if (state == State::Reading) return;
    if (state == State::Absent) return cut(coming, coming.placed);
    next.page = cache_.take_page(coming.running);
    if (next.page == PrefixTree::kRoot) return cut(coming, coming.placed);
    const double begin = now_seconds();
    next.copy = copier_.begin_write(Kept::Page, next.page, store_.bytes(next.slot).data());
    const double end = now_seconds();
    average(rates_.copy_seconds_per_byte, (end - begin) / static_cast<double>(page_bytes_));
    if (end >= until_seconds) {
      ++coming.placed;
      return;
    }
  }
}

// No more pages come than so many, whose copies have begun or not.
void PageKeeper::cut(Coming& coming, size_t pages) {
  for (; coming.asked > pages; --coming.asked) {
    store_.release(coming.arriving.back().slot);
    coming.arriving.pop_back();
  }
  coming.keys.resize(pages);
}

// The state behind the last page. False: it is on its way.
bool PageKeeper::bring_snapshot(Coming& coming) {
  if (!cache_.has_states() || coming.parent == PrefixTree::kRoot) return true;
  const auto held = store_.hold(store::state_key(*key_of(coming.parent)), state_bytes_);
  if (held.state == State::NoRoom) return false;
  if (held.state == State::Absent) return true;
  if (held.state == State::Ready) {
    if (const auto slot = cache_.adopt_snapshot(coming.parent))
      copier_.wait(copier_.begin_write(Kept::State, *slot, store_.bytes(held.slot).data()));
  }
  store_.release(held.slot);
  return held.state == State::Ready;
}

void PageKeeper::end(Coming& coming) {
  cache_.release(coming.parent);
  coming.sequence->brought = Brought::Done;
  coming.sequence->brought_tokens += static_cast<int64_t>(coming.done) * kPageRows;
  std::erase_if(coming_, [&](const Coming& other) { return &other == &coming; });
}

void PageKeeper::drop(Sequence& sequence) {
  const auto coming = std::ranges::find(coming_, &sequence, &Coming::sequence);
  CHECK(coming != coming_.end(), "request {}", sequence.id);
  for (const Arriving& arriving : coming->arriving) {
    if (arriving.page != PrefixTree::kRoot) {
      try {
        copier_.wait(arriving.copy);
      } catch (const std::exception&) {  // a device that has failed copies nothing any more
      }
      cache_.give_back(arriving.page);
    }
    store_.release(arriving.slot);
  }
  end(*coming);
}

int64_t PageKeeper::own_pages() const {
  int64_t pages = 0;
  for (const Coming& coming : coming_) pages += static_cast<int64_t>(coming.placed - coming.done);
  return pages;
}

std::vector<int32_t> PageKeeper::held() const {
  std::vector<int32_t> held;
  for (const Coming& coming : coming_) held.push_back(coming.parent);
  return held;
}

}  // namespace sluice::engine
