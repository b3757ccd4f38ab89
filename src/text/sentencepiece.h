// SentencePiece's BPE (the "llama" model of GGUF files): characters merged by the scores of what they make.
// Knows a vocabulary's pieces and one stretch of text; special tokens are taken out before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace sluice::text {

/// U+2581 LOWER ONE EIGHTH BLOCK, in UTF-8: how pieces write a space.
inline constexpr std::string_view kWrittenSpace = "\xE2\x96\x81";

class SentencePiece {
 public:
  /// Reads the tokens and scores of a vocabulary whose types are `types`, one a token. What is wrong with it
  /// goes to `problems`, after which only destroying is allowed.
  SentencePiece(const Vocab& vocab, std::span<const TokenType> types, Problems& problems);

  /// Appends the ids of a text. With a space in front, unless the text is empty, when that is asked for.
  /// Takes O(n log n) for n bytes; the merger must be one of this object's merges().
  void encode(std::string_view text, bool space_in_front, Merger& merger, std::vector<int32_t>& out) const;

  const Merges& merges() const { return merges_; }

  /// The bytes that a piece stands for: U+2581 is a space, "<0x0A>" of type Byte is that byte.
  static std::string bytes_of(std::string_view token, TokenType type);

 private:
  /// The one to four bytes of a character, the first lowest.
  using Character = uint32_t;
  using Pieces = std::unordered_map<std::string_view, int32_t>;

  static Character pack(std::string_view character);
  void read_bytes(const Vocab& vocab, std::span<const TokenType> types, Problems& problems);
  void read_characters(std::string_view piece);
  void read_merges(const Pieces& pieces, std::span<const float> scores);
  int32_t symbol(const Pieces& pieces, std::string_view text) const;
  void append_bytes(Character character, std::vector<int32_t>& out) const;
  void flush(Merger& merger, std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;

  int32_t size_ = 0;  ///< tokens; symbols from here on are characters that are none but begin or end one
  int32_t unknown_ = -1;
  std::unordered_map<Character, int32_t> symbols_;  ///< every character that occurs in a piece
  std::vector<Character> loose_;                    ///< by symbol - size_
  std::array<int32_t, 256> byte_token_{};           ///< -1: none
  Merges merges_{0};
};

}  // namespace sluice::text
