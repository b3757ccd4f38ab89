// Keeps the text of users from becoming control tokens. A chat template mixes its own text, whose "<|user|>"
// is a token, with that of users, whose "<|user|>" is nine characters. So control tokens in users' strings
// are marked before rendering, and the marks are taken out of the prompt again and remembered as places.
// Knows text and token names; messages and templates are not its business. Tags that a vocabulary has as
// user-defined tokens (<think>, <tool_call>) are control tokens here, too: who wrote them decides.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/special_tokens.h"

namespace sluice::text {

class Tokenizer;

/// A rendered prompt.
struct PromptText {
  std::string text;
  /// Ascending places inside `text`: a control token's name that reaches across one is a user's text.
  std::vector<size_t> breaks;
};

/// The control tokens of a vocabulary. Names of a single character cannot be marked, so they are left out:
/// they are never parsed in a prompt.
class ControlTokens {
 public:
  /// Whose a text is: the user's or a tool's, or the model's own, whose tags are the tags that it wrote.
  enum class Author : uint8_t { User, Model };

  /// None: nothing is marked.
  ControlTokens() : ControlTokens(std::vector<std::pair<std::string, int32_t>>()) {}
  /// Names and ids.
  explicit ControlTokens(std::vector<std::pair<std::string, int32_t>> tokens);
  /// Those that the tokenizer finds in a text when it parses special tokens, but not otherwise; and, unless
  /// users are trusted with them, user-defined ones in angle brackets.
  explicit ControlTokens(const Tokenizer& tokenizer, bool trusts_users = false);
  ControlTokens(ControlTokens&&) = default;
  ControlTokens& operator=(ControlTokens&&) = default;
  ControlTokens(const ControlTokens&) = delete;
  ControlTokens& operator=(const ControlTokens&) = delete;

  bool empty() const { return tokens_.empty(); }
  /// Where marks belong in a user's string: behind the first character of every control token's name in it,
  /// and of the beginning of one at its end. Ascending.
  std::vector<size_t> places_to_mark(std::string_view text, Author author = Author::User) const;
  /// The first token in `text` at or after `from`; id -1: none.
  SpecialTokens::Match find(std::string_view text, size_t from) const { return finder_.find(text, from); }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  ///< sorted
  std::unordered_set<int32_t> tags_;                     ///< those that are user-defined
  SpecialTokens finder_;
};

/// Makes marks that occur in none of the texts shown to it, and finds them again. A mark is printable ASCII
/// and a number, which survives what templates do to strings: strip, split, JSON, repr, upper.
class PromptMarker {
 public:
  /// To be called with every text of the prompt before the first mark.
  void avoid(std::string_view text);
  /// The text with marks at `places`.
  std::string mark(std::string_view text, const std::vector<size_t>& places);
  /// Takes the marks out of the rendered prompt.
  PromptText unmark(std::string_view rendered) const;

 private:
  std::string mark_text() const;

  int64_t number_ = 0;  ///< larger than that of any mark in the texts
  bool used_ = false;
};

/// The ids of a prompt; no BOS is added. Control tokens are parsed, except across a break; all other text is
/// encoded as one with the text around it, so marks leave no trace.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const ControlTokens& control,
                                   const PromptText& prompt);

}  // namespace sluice::text
