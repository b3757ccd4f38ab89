#include "text/grammar/json_rules.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/grammar/numbers.h"
#include "text/json_text.h"

namespace sluice::text::grammar {

using Json = nlohmann::ordered_json;

Dfa without(const std::vector<std::string_view>& words, Budget& budget) {
  const ExpressionPtr anything = repeat(any_character(), 0);
  std::vector<ExpressionPtr> ways;
  ways.reserve(words.size());
  for (const std::string_view word : words) ways.push_back(literal(word));
  return difference(automaton(*anything, budget),
                    automaton(*sequence({anything, choice(std::move(ways)), anything}), budget), budget);
}

Dfa with_length(const Dfa& text, uint64_t least, uint64_t most, Budget& budget) {
  static constexpr uint64_t kMost = 1'000'000;  // beyond it the budget ends anyway
  const auto count = [](uint64_t value) { return static_cast<int>(std::min(value, kMost)); };
  if (least == 0 && most == UINT64_MAX) return text;
  const int end = most == UINT64_MAX ? Expression::kForever : count(std::max(least, most));
  return intersection(text, automaton(*repeat(any_character(), count(least), end), budget), budget);
}

uint32_t JsonRules::indent() {
  if (indent_) return *indent_;
  indent_ = builder_.add_rule("white space");
  Nfa nfa(budget());
  const uint32_t start = nfa.add_state(), line = nfa.add_state();
  nfa.add_edge(start, '\n', '\n', line);
  for (const char c : {' ', '\t'}) nfa.add_edge(line, c, c, line, true);
  nfa.accepting = line;
  builder_.define_at_once(*indent_, nfa, 0, kMostIndent);
  return *indent_;
}

uint32_t JsonRules::append_space(Nfa& nfa, uint32_t from) {
  const uint32_t to = nfa.add_state();
  nfa.add_epsilon(from, to);
  nfa.add_edge(from, ' ', ' ', to);
  nfa.add_call(from, indent(), to);
  return to;
}

bool JsonRules::can_hold(std::string_view text) const {
  return strings_ == JsonStringKind::Any || text.find(forbidden_in(strings_)) == std::string_view::npos;
}

bool JsonRules::can_hold_plainly(std::string_view text) const {
  return std::none_of(ends_.begin(), ends_.end(),
                      [&](std::string_view end) { return text.find(end) != std::string_view::npos; });
}

uint32_t JsonRules::append_string(Nfa& nfa, std::string_view text, uint32_t from) {
  const uint32_t end = nfa.append_bytes(json_quote(text), from);
  return can_hold(text) ? end : nfa.add_state();  // nothing leads there
}

const Dfa& JsonRules::any_text() {
  if (!any_text_) any_text_ = without(ends_, budget());
  return *any_text_;
}

// Without the strings that the kind does not allow.
Dfa JsonRules::allowed(const Dfa& text) {
  return strings_ == JsonStringKind::Any ? text : intersection(text, any_text(), budget());
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

namespace {

// Lengths are counted, and unrolled only where counting could not tell what still leads to an end.
bool can_count(const Dfa& counting, uint32_t least, uint32_t most, Budget& budget) {
  return !counting.empty() && find_reach(counting, budget)[0].leads(0, least, most);
}

}  // namespace

uint32_t JsonRules::string(const Dfa& text, uint32_t least, uint32_t most) {
  const Dfa fit = allowed(text);
  const Dfa written = json_written(fit, budget());
  if (least == 0 && most == kNoLimit) return builder_.add_rule("string", quoted(written, budget()));
  Dfa counting = quoted(with_counts(written, true, budget()), budget());
  if (can_count(counting, least, most, budget()))
    return builder_.add_rule("string", std::move(counting), least, most);
  const Dfa unrolled = with_length(fit, least, most == kNoLimit ? UINT64_MAX : most, budget());
  return builder_.add_rule("string", quoted(json_written(unrolled, budget()), budget()));
}

uint32_t JsonRules::plain_string(const std::optional<Dfa>& text, uint32_t least, uint32_t most) {
  const Dfa fit = text ? intersection(*text, any_text(), budget()) : any_text();
  if (least == 0 && most == kNoLimit) return builder_.add_rule("text", fit);
  Dfa counting = with_counts(fit, false, budget());
  if (can_count(counting, least, most, budget()))
    return builder_.add_rule("text", std::move(counting), least, most);
  return builder_.add_rule("text", with_length(fit, least, most == kNoLimit ? UINT64_MAX : most, budget()));
}

uint32_t JsonRules::one_of(const std::vector<const Json*>& values) {
  std::vector<std::string_view> plain, quoted_ones;
  std::deque<std::string> written;
  Nfa nfa(budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  nfa.accepting = end;
  for (const Json* value : values) {
    budget().spend(2, 32);
    if (value->is_structured()) {
      nfa.add_epsilon(append_value(nfa, *value, start), end);
    } else if (!value->is_string()) {
      plain.push_back(written.emplace_back(value->dump()));
    } else if (const auto& text = value->get_ref<const std::string&>(); can_hold(text)) {
      const bool as_is = std::all_of(text.begin(), text.end(),
                                     [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; });
      if (as_is) {
        quoted_ones.push_back(text);
        continue;
      }
      std::string escaped = json_quote(text);
      budget().spend(0, static_cast<int64_t>(escaped.size()));
      quoted_ones.push_back(written.emplace_back(escaped.substr(1, escaped.size() - 2)));
    }
  }
  const auto add = [&](Dfa dfa) {
    if (!dfa.empty()) nfa.add_call(start, builder_.add_rule("values", std::move(dfa)), end);
  };
  add(text_set(std::move(plain), budget()));
  add(quoted(text_set(std::move(quoted_ones), budget()), budget()));
  const uint32_t rule = builder_.add_rule("values");
  builder_.define_at_once(rule, nfa);
  return rule;
}

uint32_t JsonRules::number(bool integer) {
  std::optional<uint32_t>& rule = integer ? integer_ : number_;
  if (!rule) rule = builder_.add_rule("number", number_automaton({.integer = integer}, budget()));
  return *rule;
}

void JsonRules::prepare() {
  indent();
  any_value();
  number(true);
  if (strings_ != JsonStringKind::Any) any_text();
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
  builder_.define_at_once(*value_, nfa);
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
  const uint32_t before_close = nfa.add_state();
  nfa.accepting = nfa.append_bytes("]", append_space(nfa, before_close));
  nfa.add_epsilon(at, before_close);
  bool first = true;
  const auto append_item = [&](uint32_t from, uint32_t item) {
    const uint32_t behind = nfa.add_state();
    nfa.add_call(append_space(nfa, from), item, behind, true);
    nfa.add_epsilon(behind, before_close);
    return behind;
  };
  for (const uint32_t item : array.prefix) {  // one by one
    at = append_item(std::exchange(first, false) ? at : nfa.append_bytes(",", at), item);
  }
  if (array.rest) {
    const uint32_t behind = append_item(first ? at : nfa.append_bytes(",", at), *array.rest);
    nfa.add_call(append_space(nfa, nfa.append_bytes(",", behind)), *array.rest, behind, true);
  }
  builder_.define_at_once(rule, nfa, array.least, array.most);
}

// A state for each set of items that have come (any order), or for each item that came last.
void JsonRules::define_set(uint32_t rule, const std::vector<uint32_t>& items, bool any_order, uint32_t least,
                           uint32_t most) {
  Nfa nfa(budget());
  const uint32_t start = nfa.append_bytes("[", nfa.add_state());
  const uint32_t before_close = nfa.add_state();
  nfa.add_epsilon(start, before_close);
  const auto count = static_cast<uint32_t>(items.size());
  const uint32_t places = any_order ? 1u << count : count + 1;
  std::vector<uint32_t> due(places), next(places);  // behind an item; where the next one begins
  for (uint32_t i = 0; i < places; ++i) due[i] = nfa.add_state(), next[i] = nfa.add_state();
  nfa.add_epsilon(append_space(nfa, start), next[0]);
  for (uint32_t i = 0; i < places; ++i) {
    if (i > 0) {
      nfa.add_epsilon(due[i], before_close);
      if (i + 1 < places) nfa.add_epsilon(append_space(nfa, nfa.append_bytes(",", due[i])), next[i]);
    }
    if (!any_order) {  // next[i]: items from i on may come
      if (i == count) continue;
      nfa.add_call(next[i], items[i], due[i + 1], true);
      nfa.add_epsilon(next[i], next[i + 1]);
      continue;
    }
    for (uint32_t item = 0; item < count; ++item)
      if ((i >> item & 1) == 0) nfa.add_call(next[i], items[item], due[i | 1u << item], true);
  }
  nfa.accepting = nfa.append_bytes("]", append_space(nfa, before_close));
  builder_.define_at_once(rule, nfa, least, most);
}

// Behind a key: the colon and the value.
uint32_t JsonRules::append_member(Nfa& nfa, uint32_t behind_key, uint32_t value, uint32_t to) {
  nfa.add_call(append_space(nfa, nfa.append_bytes(":", behind_key)), value, to);
  return to;
}

namespace {

/// Names as trees of states, made from the last name to the first: each root leads to the names that were
/// added so far. What a new name shares with others is copied and all else is shared, so the trees of all
/// roots together are about as large as the names.
class NameTrees {
 public:
  explicit NameTrees(Nfa& nfa) : nfa_(nfa) {}

  uint32_t empty() { return nfa_.add_state(); }
  /// The tree of `root` with one more name, which leads to `end`. No name must be the beginning of another.
  uint32_t with(uint32_t root, std::string_view name, uint32_t end) {
    const uint32_t copy = nfa_.add_state();
    std::optional<uint32_t> old = root;
    for (size_t i = 0, at = copy; i < name.size(); ++i) {
      const auto byte = static_cast<uint8_t>(name[i]);
      const uint32_t next = i + 1 == name.size() ? end : nfa_.add_state();
      Ways ways = old ? ways_[*old] : Ways();
      const auto place = std::lower_bound(ways.begin(), ways.end(), Way{byte, 0});
      old.reset();
      if (place != ways.end() && place->first == byte)
        old = std::exchange(place->second, next);
      else
        ways.insert(place, {byte, next});
      for (const auto& [symbol, target] : ways) nfa_.add_edge(at, symbol, symbol, target);
      ways_[at] = std::move(ways);
      at = next;
    }
    return copy;
  }

 private:
  using Way = std::pair<uint8_t, uint32_t>;
  using Ways = std::vector<Way>;

  Nfa& nfa_;
  std::unordered_map<uint32_t, Ways> ways_;  ///< sorted
};

}  // namespace

// From the last property to the first: a state before each one, from which it or a later one may come, up to
// the next that must.
void JsonRules::define_object(uint32_t rule, const Object& object) {
  Nfa nfa(budget());
  const uint32_t open = nfa.append_bytes("{", nfa.add_state());
  const uint32_t close = nfa.add_state(), further = nfa.add_state();
  NameTrees trees(nfa);
  uint32_t names = trees.empty(), required = 0, behind = 0;
  for (size_t i = object.properties.size() + 1; i-- > 0;) {
    const uint32_t before = i == 0 ? open : nfa.add_state();
    if (i < object.properties.size()) {
      const Property& property = object.properties[i];
      if (property.required) ++required, names = trees.empty();
      if (can_hold(property.key)) {
        const uint32_t end = nfa.add_state();
        names = trees.with(names, std::string_view(json_quote(property.key)).substr(1), end);
        append_member(nfa, end, property.value, behind);
      }
    }
    const uint32_t key = append_space(nfa, i == 0 ? before : nfa.append_bytes(",", before));
    nfa.add_edge(key, '"', '"', names, true);
    if (required == 0) {
      nfa.add_epsilon(append_space(nfa, before), close);
      nfa.add_epsilon(key, further);
    }
    behind = before;
  }
  if (!object.further.empty()) {
    // Where many are needed, only the first further one is sure to be one more: others may repeat its name.
    const bool needed = object.least > required;
    const uint32_t later = nfa.add_state(), end = nfa.add_state();
    if (!needed || object.most == kNoLimit)
      nfa.add_epsilon(append_space(nfa, nfa.append_bytes(",", end)), later);
    for (const uint32_t key : {further, later}) {
      for (const Further& one : object.further) {
        const uint32_t behind_key = nfa.add_state();
        nfa.add_call(key, one.key, behind_key, !needed || key == further);
        append_member(nfa, behind_key, one.value, end);
      }
    }
    nfa.add_epsilon(append_space(nfa, end), close);
  }
  nfa.accepting = nfa.append_bytes("}", close);
  builder_.define_at_once(rule, nfa, object.least, object.most);
}

}  // namespace sluice::text::grammar
