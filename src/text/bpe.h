// Byte pair encoding: the merges of a vocabulary and how they are applied to a piece of text. Also the
// byte-level alphabet in which such vocabularies write their tokens. Knows ids, not what a text is cut by.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// GPT-2's way to write bytes as printable characters: those of ASCII and Latin-1 that are printable stand
/// for themselves, the others follow from U+0100 on in order. Returns the character of a byte in UTF-8.
std::string byte_character(uint8_t byte);

/// The bytes that a token written in that alphabet stands for; nothing if it has other characters.
std::optional<std::string> bytes_of_characters(std::string_view token);

/// Pairs of adjacent token ids that become one, with their ranks.
class Merges {
 public:
  struct Merge {
    int32_t rank = -1;  ///< lower merges first; -1: no such merge
    int32_t token = -1;
  };

  /// Takes memory for `count` merges.
  explicit Merges(size_t count);

  /// Adds a pair; of a pair that is there already, the first rank stays. At most `count` may be added.
  void add(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  ///< open addressing; a power of two, at most two thirds full
  int shift_;                ///< 64 - log2(slots)
};

/// Applies merges to one piece after another: the lowest rank first, the leftmost of equal ones (several
/// pairs may have one rank). Keeps its memory between pieces. Takes O(n log n) for n symbols. One thread's.
class Merger {
 public:
  explicit Merger(const Merges& merges) : merges_(merges) {}

  /// Merges what `symbols` holds (at most 2^31 - 1 ids) and appends the result to `out`.
  void run(const std::vector<int32_t>& symbols, std::vector<int32_t>& out);

 private:
  struct Node {
    int32_t token;
    int32_t previous, next;  ///< -1: none
    Merges::Merge merge;     ///< with the next one
  };
  void look_up(int32_t at);

  const Merges& merges_;
  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;  ///< rank << 32 | node: the least comes first
};

}  // namespace sluice::text
