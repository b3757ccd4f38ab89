#include "text/grammar/byte_classes.h"

#include <algorithm>
#include <unordered_map>

namespace sluice::text::grammar {
namespace {

// splitmix64's last steps.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

void ByteClassFinder::add(uint32_t state, const Edge& edge) {
  if (edge.first >= kFirstTag) return;
  const uint64_t does = mixed(mixed(state + 1) + (uint64_t{edge.target} << 1 | (edge.counts ? 1 : 0)));
  const size_t behind = std::min<size_t>(edge.last, kFirstTag - 1) + size_t{1};
  difference_[edge.first] += does;
  difference_[behind] -= does;
  ++edges_[edge.first];
  --edges_[behind];
}

int ByteClasses::count() const {
  int count = 0;
  for (size_t byte = 0; byte < first.size(); ++byte) count += used[byte] && first[byte] == byte ? 1 : 0;
  return count;
}

ByteClasses ByteClassFinder::classes() const {
  ByteClasses out;
  std::unordered_map<uint64_t, uint8_t> first;
  uint64_t sum = 0;
  int64_t edges = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    sum += difference_[byte];
    edges += edges_[byte];
    out.used[byte] = edges > 0;
    out.first[byte] = first.emplace(sum, static_cast<uint8_t>(byte)).first->second;
  }
  return out;
}

}  // namespace sluice::text::grammar
