#include "text/grammar/json_rules.h"

#include <nlohmann/json.hpp>

#include "text/grammar/numbers.h"

namespace sluice::text::grammar {

using Json = nlohmann::ordered_json;

Dfa without(const std::vector<std::string_view>& words, Writing writing, Budget& budget) {
  const ExpressionPtr anything = repeat(any_character(), 0);
  std::vector<ExpressionPtr> ways;
  ways.reserve(words.size());
  for (const std::string_view word : words) ways.push_back(literal(word));
  return difference(automaton(*anything, writing, budget),
                    automaton(*sequence({anything, choice(std::move(ways)), anything}), writing, budget),
                    budget);
}

uint32_t JsonRules::indent() {
  if (indent_) return *indent_;
  indent_ = builder_.add_rule("white space");
  Nfa nfa(budget());
  const uint32_t start = nfa.add_state(), line = nfa.add_state();
  nfa.add_edge(start, '\n', '\n', line);
  for (const char c : {' ', '\t'}) nfa.add_edge(line, c, c, line, kCount);
  nfa.accepting = line;
  builder_.define(*indent_, std::move(nfa), 0, kMostIndent);
  return *indent_;
}

uint32_t JsonRules::append_space(Nfa& nfa, uint32_t from) {
  const uint32_t to = nfa.add_state();
  nfa.add_epsilon(from, to);
  nfa.add_edge(from, ' ', ' ', to);
  nfa.add_call(from, indent(), to);
  return to;
}

uint32_t JsonRules::append_string(Nfa& nfa, std::string_view text, uint32_t from, uint8_t first_guards) {
  from = nfa.append_bytes("\"", from, first_guards);
  from = append(nfa, allowed(automaton(*literal(text), Writing::JsonString, budget())), from);
  return nfa.append_bytes("\"", from);
}

Dfa JsonRules::allowed(Dfa content) {
  if (strings_ == JsonStringKind::Any) return content;
  return intersection(content, without({kValueClose}, Writing::JsonString, budget()), budget());
}

uint32_t JsonRules::append_value(Nfa& nfa, const Json& value, uint32_t from) {
  if (value.is_string()) return append_string(nfa, value.get_ref<const std::string&>(), from);
  if (!value.is_structured()) return nfa.append_bytes(value.dump(), from);
  from = nfa.append_bytes(value.is_array() ? "[" : "{", from);
  bool first = true;
  for (const auto& [key, member] : value.items()) {
    if (!first) from = nfa.append_bytes(",", from);
    first = false;
    from = append_space(nfa, from);
    if (value.is_object()) from = append_space(nfa, nfa.append_bytes(":", append_string(nfa, key, from)));
    from = append_value(nfa, member, from);
  }
  return nfa.append_bytes(value.is_array() ? "]" : "}", append_space(nfa, from));
}

uint32_t JsonRules::string(const Dfa& content) {
  const uint32_t rule = builder_.add_rule("string");
  Nfa nfa(budget());
  const uint32_t inside = nfa.append_bytes("\"", nfa.add_state());
  nfa.accepting = nfa.append_bytes("\"", append(nfa, allowed(content), inside));
  builder_.define(rule, std::move(nfa));
  return rule;
}

uint32_t JsonRules::number(bool integer) {
  std::optional<uint32_t>& rule = integer ? integer_ : number_;
  if (!rule) rule = builder_.add_rule("number", number_automaton({.integer = integer}, budget()));
  return *rule;
}

uint32_t JsonRules::any_value() {
  if (value_) return *value_;
  value_ = builder_.add_rule("value");
  Nfa nfa(budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  for (const char* word : {"null", "true", "false"}) nfa.add_epsilon(nfa.append_bytes(word, start), end);
  for (const uint32_t rule : {string(), number(false), any_object(), any_array()})
    nfa.add_call(start, rule, end);
  nfa.accepting = end;
  builder_.define(*value_, std::move(nfa));
  return *value_;
}

uint32_t JsonRules::any_object() {
  if (object_) return *object_;
  object_ = builder_.add_rule("object");
  define_object(*object_, {.further = {{string(), any_value()}}});
  return *object_;
}

uint32_t JsonRules::any_array() {
  if (array_) return *array_;
  array_ = builder_.add_rule("array");
  Array array;
  array.rest = any_value();
  define_array(*array_, array);
  return *array_;
}

void JsonRules::define_array(uint32_t rule, const Array& array) {
  Nfa nfa(budget());
  uint32_t at = nfa.append_bytes("[", nfa.add_state());
  const uint32_t end = nfa.add_state();
  const auto prefix = static_cast<uint32_t>(array.prefix.size());
  const uint32_t before_close = nfa.add_state(), close = append_space(nfa, before_close);
  // The first items one by one.
  for (uint32_t i = 0; i < prefix; ++i) {
    if (i >= array.least) nfa.add_epsilon(at, before_close);
    if (i >= array.most) {
      at = nfa.add_state();  // nothing leads there
      break;
    }
    at = append_space(nfa, i == 0 ? at : nfa.append_bytes(",", at));
    const uint32_t behind = nfa.add_state();
    nfa.add_call(at, array.prefix[i], behind);
    at = behind;
  }
  // Then the others, counted. `at` is behind "[" or behind the last of the first items.
  const uint32_t least = array.least > prefix ? array.least - prefix : 0;
  const uint32_t most = !array.rest              ? 0
                        : array.most == kNoLimit ? kNoLimit
                        : array.most > prefix    ? array.most - prefix
                                                 : 0;
  nfa.add_edge(close, ']', ']', end, kIfEnough);
  nfa.add_epsilon(at, before_close);
  if (array.rest && most > 0) {
    const uint32_t behind = nfa.add_state(), comma = nfa.add_state();
    const uint32_t first = append_space(nfa, prefix == 0 ? at : comma);
    if (prefix > 0) {
      nfa.add_edge(at, ',', ',', comma, kIfRoom);
      nfa.add_call(first, *array.rest, behind, kCount);
    } else {
      nfa.add_call(first, *array.rest, behind, kCount);
      nfa.add_call(append_space(nfa, comma), *array.rest, behind, kCount);
    }
    nfa.add_edge(behind, ',', ',', comma, kIfRoom);
    nfa.add_epsilon(behind, before_close);
  }
  nfa.accepting = end;
  if (least > most) {  // no array is like this: an automaton that leads nowhere
    nfa = Nfa(budget());
    nfa.add_state();
    nfa.accepting = nfa.add_state();
    return builder_.define(rule, std::move(nfa));
  }
  builder_.define(rule, std::move(nfa), least, most);
}

// Behind a key: the colon and the value.
uint32_t JsonRules::append_member(Nfa& nfa, uint32_t behind_key, uint32_t value, uint32_t to) {
  nfa.add_call(append_space(nfa, nfa.append_bytes(":", behind_key)), value, to);
  return to;
}

// Two rows of states, one place for each property that comes next: nothing has been written yet, and
// something has, so that a comma is due.
void JsonRules::define_object(uint32_t rule, const Object& object) {
  Nfa nfa(budget());
  uint32_t fresh = nfa.append_bytes("{", nfa.add_state()), due = nfa.add_state();
  for (const Property& property : object.properties) {
    const uint32_t next_fresh = nfa.add_state(), next_due = nfa.add_state(), key = nfa.add_state();
    nfa.add_epsilon(append_space(nfa, fresh), key);
    nfa.add_epsilon(append_space(nfa, nfa.append_bytes(",", due)), key);
    append_member(nfa, append_string(nfa, property.key, key), property.value, next_due);
    if (!property.required) {
      nfa.add_epsilon(fresh, next_fresh);
      nfa.add_epsilon(due, next_due);
    }
    fresh = next_fresh;
    due = next_due;
  }
  const uint32_t close = append_space(nfa, fresh), end = nfa.add_state();
  nfa.add_epsilon(append_space(nfa, due), close);
  nfa.add_edge(close, '}', '}', end, kIfEnough);
  if (!object.further.empty()) {
    // From here on each property counts; a comma is due behind each.
    const uint32_t key = nfa.add_state(), behind = nfa.add_state(), comma = nfa.add_state();
    nfa.add_epsilon(append_space(nfa, fresh), key);
    for (const uint32_t from : {due, behind}) nfa.add_edge(from, ',', ',', comma, kIfRoom);
    nfa.add_epsilon(append_space(nfa, comma), key);
    for (const Further& further : object.further) {
      const uint32_t behind_key = nfa.add_state();
      nfa.add_call(key, further.key, behind_key, kCount);
      append_member(nfa, behind_key, further.value, behind);
    }
    nfa.add_epsilon(append_space(nfa, behind), close);
  }
  nfa.accepting = end;
  builder_.define(rule, std::move(nfa), object.least, object.most);
}

}  // namespace sluice::text::grammar
