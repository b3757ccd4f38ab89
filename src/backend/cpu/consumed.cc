#include "backend/cpu/consumed.h"

#include <algorithm>

#include "base/file_cache.h"

namespace sluice::backend::cpu {
namespace {

constexpr int64_t kDropped = 4 << 20;  // of the page cache, at most
constexpr int64_t kGap = 64 << 10;     // small weights between large ones: read again, if at all, one by one

}  // namespace

void Consumed::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::byte *begin = bytes.data(), *end = begin + bytes.size();
  {
    const std::lock_guard lock(mutex_);
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
  const std::byte* from = bytes.data() - std::min(kDropped, bytes.data() - begin);
  const std::byte* to = bytes.data() + bytes.size();
  to += std::min(kDropped, end - to);
  drop_pages({from, to});
}

}  // namespace sluice::backend::cpu
