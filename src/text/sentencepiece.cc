// The merges are worked out once: every way to halve a piece into two symbols, ranked by the piece's score.
// Merging is then that of byte-level BPE, on characters.
#include "text/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "base/interruption.h"
#include "text/utf8.h"

namespace sluice::text {

namespace {

/// Halving a piece takes the square of its length; the longest of real files have some 50 bytes.
constexpr size_t kLongestPiece = 1024;
/// The sum of those squares: Gemma's 256,000 pieces come to 2^24.
constexpr size_t kMostSquares = size_t{1} << 27;

/// "<0x0A>" -> 10; the digits in either case.
std::optional<uint8_t> byte_name(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

/// Only these are made of text; control tokens written in it stay text.
bool is_piece(TokenType type) { return type == TokenType::Normal || type == TokenType::UserDefined; }

}  // namespace

std::string SentencePiece::bytes_of(std::string_view token, TokenType type) {
  if (type == TokenType::Byte) {
    const auto byte = byte_name(token);
    return byte ? std::string(1, static_cast<char>(*byte)) : std::string(token);
  }
  if (type != TokenType::Normal) return std::string(token);
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const size_t space = std::min(token.find(kWrittenSpace, at), token.size());
    out += token.substr(at, space - at);
    if (space < token.size()) out += ' ';
    at = space + kWrittenSpace.size();
  }
  return out;
}

SentencePiece::Character SentencePiece::pack(std::string_view character) {
  Character packed = 0;
  for (size_t i = 0; i < character.size(); ++i)
    packed |= Character{static_cast<uint8_t>(character[i])} << 8 * i;
  return packed;
}

SentencePiece::SentencePiece(const Vocab& vocab, std::span<const TokenType> types, Problems& problems)
    : size_(static_cast<int32_t>(vocab.tokens.size())), unknown_(vocab.unk) {
  if (vocab.scores.size() != vocab.tokens.size()) {
    problems.add("{} scores for {} tokens", vocab.scores.size(), vocab.tokens.size());
    return;
  }
  Pieces pieces;
  pieces.reserve(vocab.tokens.size());
  size_t squares = 0;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const std::string_view piece = vocab.tokens[id];
    if (!is_piece(types[id]) || piece.empty()) continue;
    if (piece.size() > kLongestPiece)
      problems.add("token {}: {} bytes, expected at most {}", id, piece.size(), kLongestPiece);
    squares += piece.size() * piece.size();
    if (std::isnan(vocab.scores[id])) problems.add("token {}: its score is not a number", id);
    if (utf8_valid_prefix(piece) == piece.size())
      pieces.emplace(piece, id);  // of equal ones, the first counts
  }
  if (squares > kMostSquares) problems.add("the pieces are too long: {} bytes squared", squares);
  read_bytes(vocab, types, problems);
  if (!problems.empty()) return;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const auto found = pieces.find(vocab.tokens[id]);
    if (found == pieces.end() || found->second != static_cast<int32_t>(id)) continue;
    if (utf8_step(found->first).length == found->first.size()) symbols_[pack(found->first)] = found->second;
  }
  for (const auto& [piece, id] : pieces) read_characters(piece);
  read_merges(pieces, vocab.scores);
}

void SentencePiece::read_bytes(const Vocab& vocab, std::span<const TokenType> types, Problems& problems) {
  byte_token_.fill(-1);
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (types[id] != TokenType::Byte) continue;
    const auto byte = byte_name(vocab.tokens[id]);
    if (!byte) {
      problems.add("token {}: \"{}\" is of type byte, expected <0x00> to <0xFF>", id, vocab.tokens[id]);
    } else if (byte_token_[*byte] < 0) {
      byte_token_[*byte] = static_cast<int32_t>(id);
    }
  }
  const auto missing = std::count(byte_token_.begin(), byte_token_.end(), -1);
  if (missing > 0 && unknown_ < 0) problems.add("no token for {} of 256 bytes and no unknown token", missing);
}

// Characters that are no piece get symbols too: two of them may make one.
void SentencePiece::read_characters(std::string_view piece) {
  while (!piece.empty()) {
    const size_t length = utf8_step(piece).length;
    const Character character = pack(piece.substr(0, length));
    const auto [at, is_new] = symbols_.emplace(character, size_ + static_cast<int32_t>(loose_.size()));
    if (is_new) loose_.push_back(character);
    piece.remove_prefix(length);
  }
}

int32_t SentencePiece::symbol(const Pieces& pieces, std::string_view text) const {
  if (utf8_step(text).length == text.size()) return symbols_.at(pack(text));
  const auto found = pieces.find(text);
  return found == pieces.end() ? -1 : found->second;
}

void SentencePiece::read_merges(const Pieces& pieces, std::span<const float> scores) {
  std::vector<float> ranked;  // the best score has rank 0; equal scores have one rank
  ranked.reserve(pieces.size());
  for (const auto& [piece, id] : pieces) ranked.push_back(scores[id]);
  std::sort(ranked.begin(), ranked.end(), std::greater<>());
  ranked.erase(std::unique(ranked.begin(), ranked.end()), ranked.end());

  struct Pair {
    int32_t left, right;
    Merges::Merge merge;
  };
  std::vector<Pair> pairs;
  for (const auto& [piece, id] : pieces) {
    const auto rank = std::lower_bound(ranked.begin(), ranked.end(), scores[id], std::greater<>());
    for (size_t cut = utf8_step(piece).length; cut < piece.size();
         cut += utf8_step(piece.substr(cut)).length) {
      const int32_t left = symbol(pieces, piece.substr(0, cut));
      const int32_t right = left < 0 ? -1 : symbol(pieces, piece.substr(cut));
      if (right >= 0) pairs.push_back({left, right, {static_cast<int32_t>(rank - ranked.begin()), id}});
    }
  }
  merges_ = Merges(pairs.size());
  for (const Pair& pair : pairs) merges_.add(pair.left, pair.right, pair.merge);
}

void SentencePiece::append_bytes(Character character, std::vector<int32_t>& out) const {
  int length = 1;
  while (length < 4 && character >> 8 * length != 0) ++length;
  for (int i = 0; i < length; ++i) {
    if (byte_token_[character >> 8 * i & 0xFF] >= 0) continue;
    out.push_back(unknown_);  // one for the whole character
    return;
  }
  for (int i = 0; i < length; ++i) out.push_back(byte_token_[character >> 8 * i & 0xFF]);
}

// Merges the symbols gathered so far; characters that are still no token become bytes.
void SentencePiece::flush(Merger& merger, std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  const size_t begin = out.size();
  merger.run(symbols, out);
  symbols.clear();
  const auto loose = [this](int32_t symbol) { return symbol >= size_; };
  if (std::none_of(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), loose)) return;
  const std::vector<int32_t> merged(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
  out.resize(begin);
  for (const int32_t symbol : merged) {
    if (loose(symbol)) {
      append_bytes(loose_[symbol - size_], out);
    } else {
      out.push_back(symbol);
    }
  }
}

void SentencePiece::encode(std::string_view text, bool space_in_front, Merger& merger,
                           std::vector<int32_t>& out) const {
  std::vector<int32_t> symbols;
  const auto add = [&](Character character) {
    if (const auto found = symbols_.find(character); found != symbols_.end()) {
      symbols.push_back(found->second);
      return;
    }
    flush(merger, symbols, out);  // no piece has this character: nothing merges across it
    append_bytes(character, out);
  };
  const Character space = pack(kWrittenSpace);
  if (space_in_front && !text.empty()) add(space);
  while (!text.empty()) {
    Interruptible::look();
    const Utf8Step step = utf8_step(text);
    if (text[0] == ' ') {
      add(space);
    } else if (step.kind == Utf8Step::Valid) {
      add(pack(text.substr(0, step.length)));
    } else {  // what is no character is taken byte by byte
      flush(merger, symbols, out);
      for (size_t i = 0; i < step.length; ++i) append_bytes(static_cast<uint8_t>(text[i]), out);
    }
    text.remove_prefix(step.length);
  }
  flush(merger, symbols, out);
}

}  // namespace sluice::text
