// The body of ConstraintVocabulary: what all constraints of a model share.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint.h"
#include "text/grammar/json_string.h"
#include "text/grammar/trie.h"

namespace sluice::text {

struct ConstraintVocabulary::Impl {
  explicit Impl(const Tokenizer& tokenizer);

  /// The bytes that a token writes; none: control tokens, and those that end the generation.
  std::string_view bytes(int32_t token) const {
    return std::string_view(all_bytes).substr(begins[token], begins[token + 1] - begins[token]);
  }
  /// The control token of that name that ends nothing, or -1.
  int32_t control(std::string_view name) const;
  size_t words() const { return (ends_generation.size() + 31) / 32; }

  std::string all_bytes;
  std::vector<size_t> begins;
  std::vector<bool> ends_generation;
  std::vector<int32_t> ends;
  std::map<std::string, int32_t, std::less<>> controls;
  grammar::Trie trie;
  grammar::StringMasks strings;
};

}  // namespace sluice::text
