#include "backend/cpu/consumed.h"

#include <algorithm>

#include "base/file_cache.h"

namespace sluice::backend::cpu {
namespace {

constexpr int64_t kDropped = 4 << 20;  // of the page cache, at most, on either side of what is new
constexpr int64_t kAtOnce = 4 << 20;   // that were consumed
constexpr int64_t kGap = 64 << 10;     // small weights between large ones: read again, if at all, one by one

}  // namespace

void Consumed::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::vector<std::span<const std::byte>> ranges;
  {
    const std::lock_guard lock(mutex_);
    join(bytes);
    kept_.push_back(bytes);
    kept_bytes_ += static_cast<int64_t>(bytes.size());
    if (kept_bytes_ < kAtOnce) return;
    ranges = take_kept();
  }
  for (const auto range : ranges) drop_pages(range);
}

void Consumed::finish() {
  for (const auto range : take_kept()) drop_pages(range);
}

void Consumed::join(std::span<const std::byte> bytes) {
  const std::byte *begin = bytes.data(), *end = begin + bytes.size();
  auto next = parts_.upper_bound(begin);
  if (next != parts_.begin() && begin - std::prev(next)->second <= kGap) {
    --next;
    begin = next->first;
  }
  while (next != parts_.end() && next->first - end <= kGap) {
    end = std::max(end, next->second);
    next = parts_.erase(next);
  }
  parts_[begin] = end;
}

std::vector<std::span<const std::byte>> Consumed::take_kept() {
  std::ranges::sort(kept_, {}, [](const auto& bytes) { return bytes.data(); });
  std::vector<std::span<const std::byte>> ranges;
  for (const auto bytes : kept_) {
    const auto& [begin, end] = *std::prev(parts_.upper_bound(bytes.data()));
    const std::byte* from = bytes.data() - std::min(kDropped, bytes.data() - begin);
    const std::byte* last = bytes.data() + bytes.size();
    const std::byte* to = last + std::min(kDropped, end - last);
    if (!ranges.empty() && from <= ranges.back().data() + ranges.back().size()) {
      from = ranges.back().data();
      to = std::max(to, from + ranges.back().size());
      ranges.pop_back();
    }
    ranges.emplace_back(from, to);
  }
  kept_.clear();
  kept_bytes_ = 0;
  return ranges;
}

}  // namespace sluice::backend::cpu
