// A hash table of pairs, and a heap of possible merges over a linked list of symbols.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "base/interruption.h"

namespace sluice::text {

namespace {

// Printable and not the no-break space or the soft hyphen: these bytes are their own characters.
bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> character{};  ///< code point by byte
  std::array<int16_t, 0x144> byte{};      ///< by code point; -1: none

  Alphabet() {
    byte.fill(-1);
    uint16_t other = 0x100;
    for (int b = 0; b < 256; ++b) {
      character[b] = stands_for_itself(b) ? static_cast<uint16_t>(b) : other++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::string byte_character(uint8_t byte) {
  const uint16_t c = alphabet().character[byte];  // below U+0800: one or two bytes
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  const Alphabet& letters = alphabet();
  std::string out;
  out.reserve(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    unsigned c = static_cast<uint8_t>(token[i]);
    if (c >= 0x80) {
      if (c < 0xC2 || c > 0xC5 || i + 1 == token.size()) return std::nullopt;
      const unsigned low = static_cast<uint8_t>(token[++i]);
      if ((low & 0xC0) != 0x80) return std::nullopt;
      c = (c & 0x1F) << 6 | (low & 0x3F);
    }
    if (c >= letters.byte.size() || letters.byte[c] < 0) return std::nullopt;
    out += static_cast<char>(letters.byte[c]);
  }
  return out;
}

Merges::Merges(size_t count) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, count + count / 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

size_t Merges::slot_of(uint64_t pair) const {
  // Multiplicative hashing: the high bits of the product depend on all of the pair.
  size_t slot = (pair * 0x9E3779B97F4A7C15u) >> shift_;
  while (slots_[slot].merge.rank >= 0 && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void Merges::add(int32_t left, int32_t right, Merge merge) {
  CHECK(merge.rank >= 0);
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.merge.rank < 0) slot = {pair, merge};
}

Merges::Merge Merges::find(int32_t left, int32_t right) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  return slots_[slot_of(pair)].merge;
}

// Finds the merge of a node with its next one, and queues it.
void Merger::look_up(int32_t at) {
  Node& node = nodes_[at];
  node.merge = node.next < 0 ? Merges::Merge{} : merges_.find(node.token, nodes_[node.next].token);
  if (node.merge.rank >= 0) heap_.push_back(uint64_t{static_cast<uint32_t>(node.merge.rank)} << 32 | at);
}

void Merger::run(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) {
  const auto count = static_cast<int32_t>(symbols.size());
  nodes_.resize(symbols.size());
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) nodes_[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1, {}};
  for (int32_t i = 0; i < count; ++i) look_up(i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());

  const auto queue = [&](int32_t at) {
    const size_t before = heap_.size();
    look_up(at);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  Interruptible::look();
  while (!heap_.empty()) {
    if (heap_.size() % 1024 == 0) Interruptible::look();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const auto at = static_cast<int32_t>(top & 0xFFFFFFFFu);
    Node& node = nodes_[at];
    // If the node's merge still has this rank, it is the best one there is, whether it was queued as this
    // pair or as an earlier one of the same rank.
    if (node.merge.rank != static_cast<int32_t>(top >> 32)) continue;
    Node& gone = nodes_[node.next];
    node.token = node.merge.token;
    node.next = gone.next;
    gone.merge = {};
    if (node.next >= 0) nodes_[node.next].previous = at;
    queue(at);
    if (node.previous >= 0) queue(node.previous);
  }
  for (int32_t i = count == 0 ? -1 : 0; i >= 0; i = nodes_[i].next) out.push_back(nodes_[i].token);
}

}  // namespace sluice::text
