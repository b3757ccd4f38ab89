// Which bytes a grammar tells apart. Most tell few: to `[a-z ]+` all letters are one. Whoever follows a
// grammar need only do so for one byte of each kind.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>

#include "text/grammar/automaton.h"

namespace sluice::text::grammar {

struct ByteClasses {
  std::array<uint8_t, 256> first{};  ///< by byte: the smallest byte that every state takes for the same
  std::bitset<256> used;             ///< the bytes that some state goes on with

  int count() const;  ///< of the used ones
};

/// Adds up, byte by byte, what edges do with it.
class ByteClassFinder {
 public:
  void add(uint32_t state, const Edge& edge);
  ByteClasses classes() const;

 private:
  // Of a byte the sum of numbers drawn for (state, target, counts), which differ for bytes that do; kept as
  // differences to the byte before, so that wide edges cost no more than narrow ones.
  std::array<uint64_t, 257> difference_{};
  std::array<int64_t, 257> edges_{};
};

}  // namespace sluice::text::grammar
