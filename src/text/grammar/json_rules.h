// Rules for JSON of any kind, and the bricks that schemas' rules are made of. White space is what compact,
// usual and indented JSON have: at most one space, or a line end and up to kMostIndent spaces or tabs, behind
// brackets, commas and colons and before closing brackets. More would let a model go on with nothing for
// ever.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace sluice::text::grammar {

class JsonRules {
 public:
  static constexpr uint32_t kMostIndent = 64;

  /// `strings`: the kind of all strings, keys included; plain ones are without `ends`, too. The builder must
  /// outlive this.
  JsonRules(GrammarBuilder& builder, JsonStringKind strings, std::vector<std::string_view> ends = {})
      : builder_(builder), strings_(strings), ends_(std::move(ends)) {
    if (strings != JsonStringKind::Any) ends_.push_back(forbidden_in(strings));
  }

  GrammarBuilder& builder() { return builder_; }
  Budget& budget() { return builder_.budget(); }

  /// Makes the rules that many others share.
  void prepare();
  uint32_t any_value();
  uint32_t any_object();
  uint32_t any_array();
  /// A string of that many characters.
  uint32_t string(uint32_t least = 0, uint32_t most = kNoLimit) {
    return builder_.string_rule(least, most, strings_);
  }
  /// A string of that many characters whose text is of an automaton.
  uint32_t string(const Dfa& text, uint32_t least = 0, uint32_t most = kNoLimit);
  /// The same as it is, not as JSON.
  uint32_t plain_string(const std::optional<Dfa>& text, uint32_t least, uint32_t most);
  /// Whether this text can be a plain string.
  bool can_hold_plainly(std::string_view text) const;
  /// One of these values, as they are; keys in their order.
  uint32_t one_of(const std::vector<const nlohmann::ordered_json*>& values);
  /// A number without bounds.
  uint32_t number(bool integer);

  /// Adds white space behind `from`; returns the state behind it.
  uint32_t append_space(Nfa& nfa, uint32_t from);
  /// Adds a string as it is, with quotes.
  uint32_t append_string(Nfa& nfa, std::string_view text, uint32_t from);

  struct Array {
    std::vector<uint32_t> prefix;  ///< rules of the first items
    std::optional<uint32_t> rest;  ///< of further ones; none: there are no further ones
    uint32_t least = 0, most = kNoLimit;
  };
  void define_array(uint32_t rule, const Array& array);
  /// Lists of so many of these, each at most once; in their order, or in any.
  void define_set(uint32_t rule, const std::vector<uint32_t>& items, bool any_order, uint32_t least,
                  uint32_t most);

  struct Property {
    std::string key;
    uint32_t value;  ///< its rule
    bool required;
  };
  struct Further {
    uint32_t key;  ///< rule of keys, with quotes
    uint32_t value;
  };
  struct Object {
    std::vector<Property> properties;     ///< in the order in which they come
    std::vector<Further> further;         ///< kinds of further properties, which come behind the others
    uint32_t least = 0, most = kNoLimit;  ///< how many properties; further ones may have one name twice
  };
  void define_object(uint32_t rule, const Object& object);

 private:
  uint32_t indent();
  uint32_t append_value(Nfa& nfa, const nlohmann::ordered_json& value, uint32_t from);
  Dfa allowed(const Dfa& text);
  const Dfa& any_text();
  bool can_hold(std::string_view text) const;
  uint32_t append_member(Nfa& nfa, uint32_t behind_key, uint32_t value, uint32_t to);

  GrammarBuilder& builder_;
  JsonStringKind strings_;
  std::vector<std::string_view> ends_;
  std::optional<uint32_t> indent_, value_, object_, array_, integer_, number_;
  std::optional<Dfa> any_text_;  ///< without ends_
};

/// The texts, valid UTF-8, in which none of these occurs.
Dfa without(const std::vector<std::string_view>& words, Budget& budget);
/// A text cut to those of so many characters; `least` 0 and `most` kNoLimit: as it is.
Dfa with_length(const Dfa& text, uint64_t least, uint64_t most, Budget& budget);

}  // namespace sluice::text::grammar
