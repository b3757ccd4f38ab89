// JSON strings, which most of a document's tokens are in: their automaton, and which tokens fit into one,
// found once a vocabulary for all grammars.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/trie.h"

namespace sluice::text::grammar {

/// Tagged calls end an argument at its closing tag, wherever that stands: strings there are without it.
enum class JsonStringKind : uint8_t {
  Any,
  WithoutArgValueClose,
  WithoutParameterClose,
};
inline constexpr int kJsonStringKinds = 3;
/// What no string of the kind holds; empty: nothing.
std::string_view forbidden_in(JsonStringKind kind);
/// The kind whose strings are without this closing tag.
JsonStringKind json_string_kind_without(std::string_view tag);

/// The automaton of a string with its quotes: state 0 is before the opening quote, 1 behind it, the last one
/// behind the closing quote. The first byte of each character counts; the closing quote needs enough.
/// Escapes are those of JSON, with surrogates in pairs only; other characters are whole UTF-8.
const Dfa& json_string(JsonStringKind kind);

/// The tokens that go on within a string, or end it, from one of its states.
struct StringMask {
  struct Exit {
    uint32_t node;        ///< of the closing quote
    uint32_t characters;  ///< that begin before it
  };
  std::vector<std::pair<uint32_t, int32_t>> inside;  ///< characters that begin in a token, token; sorted
  std::vector<std::vector<uint32_t>>
      up_to;                  ///< [i]: bits of the tokens in which at most 2^i characters begin
  std::vector<uint32_t> all;  ///< bits of all tokens inside
  uint32_t most = 0;          ///< characters that begin in one token
  std::vector<Exit> exits;
};

/// Masks of all states of all kinds, made when first asked for.
class StringMasks {
 public:
  /// `trie` must outlive this and be there before the first get(); `words`: of a bit set of all tokens.
  explicit StringMasks(const Trie& trie);
  void set_words(size_t words) { words_ = words; }
  /// `state` counts from 0 as json_string()'s do.
  const StringMask& get(JsonStringKind kind, uint32_t state) const;

 private:
  StringMask find(const Dfa& dfa, uint32_t state) const;

  const Trie& trie_;
  size_t words_ = 0;
  mutable std::mutex mutex_;
  mutable std::array<std::vector<std::unique_ptr<StringMask>>, kJsonStringKinds> masks_;
};

}  // namespace sluice::text::grammar
