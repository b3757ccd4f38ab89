#include "text/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "text/grammar/numbers.h"
#include "text/grammar/pattern.h"

namespace sluice::text::grammar {
namespace {

void sort_unique(Items& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

bool has_parts(const Shape& shape) {
  return std::any_of(shape.schemas.begin(), shape.schemas.end(), [](const Json* schema) {
    for (const char* key : {"properties", "required", "additionalProperties", "patternProperties",
                            "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems"})
      if (schema->contains(key)) return true;
    return false;
  });
}

}  // namespace

uint32_t SchemaCompiler::rule_of(Items items) {
  sort_unique(items);
  if (items.empty()) return rules_.any_value();
  if (const auto found = known_.find(items); found != known_.end()) return found->second;
  const uint32_t rule = rules_.builder().add_rule(document_.path(items.front().schema));
  known_.emplace(items, rule);
  rules_.budget().spend(100, 200);
  if (++depth_ > 200) fail("{}: nested too deep", document_.path(items.front().schema));
  define(rule, items);
  --depth_;
  return rule;
}

uint32_t SchemaCompiler::define(uint32_t rule, const Items& items) {
  const Shape shape = document_.shape(items);
  if (!shape.never && !shape.choices.empty()) return choice_rule(rule, items, shape.choices.front());
  Nfa nfa(rules_.budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  nfa.accepting = end;
  const auto call = [&](uint32_t called) { nfa.add_call(start, called, end); };
  if (shape.values && !shape.never) {
    call(rules_.one_of(fitting_values(shape)));
  } else if (!shape.never) {
    const auto add_word = [&](const char* word) { nfa.add_epsilon(nfa.append_bytes(word, start), end); };
    if ((shape.types & kNull) != 0) add_word("null");
    if ((shape.types & kBoolean) != 0) add_word("true"), add_word("false");
    if ((shape.types & kString) != 0) call(string_rule(shape));
    if ((shape.types & (kNumber | kInteger)) != 0) call(rules_.builder().add_rule("number", number(shape)));
    if ((shape.types & kArray) != 0) {
      const uint32_t array = rules_.builder().add_rule(document_.path(items.front().schema));
      define_array(array, shape);
      call(array);
    }
    if ((shape.types & kObject) != 0) {
      const uint32_t object = rules_.builder().add_rule(document_.path(items.front().schema));
      define_object(object, shape);
      call(object);
    }
  }
  rules_.builder().define_at_once(rule, nfa);
  return rule;
}

std::vector<Items> SchemaCompiler::alternatives(const Items& items, const Choice& choice) {
  Items base = items;
  base.push_back({choice.owner, choice.exclusive ? kOneOf : kAnyOf});
  std::vector<Items> out;
  for (const Json& alternative : *choice.alternatives) {
    rules_.budget().spend(static_cast<int64_t>(8 + base.size()),
                          static_cast<int64_t>(64 + base.size() * sizeof(Item)));
    const Shape alone = document_.shape({{&alternative}});
    const bool loops = std::any_of(base.begin(), base.end(), [&](const Item& item) {
      return item.decided != 0 &&
             std::find(alone.schemas.begin(), alone.schemas.end(), item.schema) != alone.schemas.end();
    });
    if (loops) {
      document_.leave(&alternative, "", "refers to itself without a value in between");
      continue;
    }
    out.push_back(base);
    out.back().push_back({&alternative});
    sort_unique(out.back());
  }
  return out;
}

uint32_t SchemaCompiler::choice_rule(uint32_t rule, const Items& items, const Choice& choice) {
  const std::vector<Items> ways = alternatives(items, choice);
  if (choice.exclusive) check_exclusive(choice, ways);
  Nfa nfa(rules_.budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  nfa.accepting = end;
  std::vector<const Json*> values;  // of all alternatives that are values, in one automaton
  for (const Items& way : ways) {
    const Shape shape = document_.shape(way);
    if (shape.never) continue;
    if (shape.values && shape.choices.empty()) {
      const std::vector<const Json*> some = fitting_values(shape);
      values.insert(values.end(), some.begin(), some.end());
    } else {
      nfa.add_call(start, rule_of(way), end);
    }
  }
  if (!values.empty()) nfa.add_call(start, rules_.one_of(values), end);
  rules_.builder().define_at_once(rule, nfa);
  return rule;
}

// Where the alternatives of a type are told apart by their values, or by those of a property, one look at
// each is enough; else they are compared one by one.
void SchemaCompiler::check_exclusive(const Choice& choice, const std::vector<Items>& ways) {
  std::vector<Shape> shapes;
  for (const Items& way : ways) {
    shapes.push_back(document_.shape(way));
    rules_.budget().spend(10, sizeof(Shape));
  }
  bool clear = true;
  for (const TypeSet type : {kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject}) {
    std::vector<const Shape*> some;
    for (const Shape& shape : shapes)
      if ((types_of(shape) & type) != 0) some.push_back(&shape);
    clear = clear && (some.size() < 2 || told_apart(some, type));
  }
  if (clear) return;
  for (size_t i = 0; i < ways.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      rules_.budget().spend(100);
      if (disjoint(ways[i], ways[j], 0)) continue;
      return document_.leave(
          choice.owner, "oneOf",
          fmt::format("alternatives {} and {} may both hold for one value; anyOf does without the check", j,
                      i));
    }
  }
}

bool SchemaCompiler::told_apart(const std::vector<const Shape*>& shapes, TypeSet type) {
  if (type == kObject && told_apart_by_property(shapes)) return true;
  std::unordered_set<std::string> texts;
  for (const Shape* shape : shapes) {
    if (!shape->values) return false;
    for (const Json* value : *shape->values) {
      rules_.budget().spend(4, 100);
      if ((type_of_value(*value) & type) != 0 && !texts.insert(canonical(*value)).second) return false;
    }
  }
  return true;
}

// Whether all have a required property whose values are different ones for each.
bool SchemaCompiler::told_apart_by_property(const std::vector<const Shape*>& shapes) {
  std::map<std::string, std::unordered_set<std::string>> candidates;
  bool first = true;
  for (const Shape* shape : shapes) {
    std::map<std::string, std::unordered_set<std::string>> left;
    for (const Property& property : properties_of(*shape)) {
      if (!property.required || (!first && !candidates.contains(property.key)) || property.items.empty())
        continue;
      const Shape values = document_.shape(property.items);
      if (!values.values) continue;
      std::unordered_set<std::string>& known = left[property.key];
      if (!first) known = std::move(candidates[property.key]);
      bool is_new = true;
      for (const Json* value : *values.values) {
        rules_.budget().spend(4, 100);
        is_new = known.insert(canonical(*value)).second && is_new;
      }
      if (!is_new) left.erase(property.key);
    }
    candidates = std::move(left);
    first = false;
    if (candidates.empty()) return false;
  }
  return true;
}

// Whether no document made for one is valid for the other. Not found out is no.
bool SchemaCompiler::disjoint(const Items& left, const Items& right, int depth) {
  const Shape a = document_.shape(left), b = document_.shape(right);
  const TypeSet common = types_of(a) & types_of(b);
  if (common == 0) return true;
  if (a.values && b.values) {
    std::unordered_set<std::string> texts;
    rules_.budget().spend(static_cast<int64_t>(4 * (a.values->size() + b.values->size())));
    for (const Json* one : *a.values) texts.insert(canonical(*one));
    return std::none_of(b.values->begin(), b.values->end(),
                        [&](const Json* one) { return texts.contains(canonical(*one)); });
  }
  if (common != kObject || depth > 3) return false;
  const std::vector<Property> of_a = properties_of(a), of_b = properties_of(b);
  const auto find = [](const std::vector<Property>& properties, const std::string& key) {
    return std::find_if(properties.begin(), properties.end(),
                        [&](const Property& p) { return p.key == key; });
  };
  // What one always has and the other never writes.
  const auto lacks = [&](const Shape& shape, const std::vector<Property>& own,
                         const std::vector<Property>& other) {
    return shape.choices.empty() && is_closed(shape) &&
           std::any_of(other.begin(), other.end(),
                       [&](const Property& p) { return p.required && find(own, p.key) == own.end(); });
  };
  if (lacks(a, of_a, of_b) && lacks(b, of_b, of_a)) return true;
  return std::any_of(of_a.begin(), of_a.end(), [&](const Property& p) {
    const auto other = find(of_b, p.key);
    return p.required && other != of_b.end() && other->required && disjoint(p.items, other->items, depth + 1);
  });
}

// The values of enum and const that the other keywords allow, too.
std::vector<const Json*> SchemaCompiler::fitting_values(const Shape& shape) {
  std::vector<const Json*> out;
  std::optional<Text> text;
  std::optional<Dfa> numbers;
  const bool bounded =
      !shape.lower.empty() || !shape.upper.empty() || !shape.factors.empty() || !shape.formats.empty();
  for (const Json* value : *shape.values) {
    rules_.budget().spend(2, sizeof(Json*));
    if ((type_of_value(*value) & shape.types) == 0) continue;
    if (value->is_structured() && has_parts(shape))
      document_.leave(first(shape), "enum",
                      "lists and objects are not supported beside keywords about parts");
    if (value->is_number() && bounded) {
      if (!numbers) {
        Shape bounds = shape;
        bounds.types = kNumber | kInteger;  // 2.0 is an integer, but is not written like one
        numbers = number(bounds);
      }
      if (!numbers->matches(value->dump())) continue;
    }
    if (value->is_string()) {
      if (!text) text = text_of(shape);
      const auto& characters = value->get_ref<const std::string&>();
      const uint64_t length = count_code_points(characters);
      if (length < text->least || length > text->most) continue;
      if (text->characters && !text->characters->matches(characters)) continue;
    }
    out.push_back(value);
  }
  return out;
}

ExpressionPtr SchemaCompiler::pattern(const Json* schema, const std::string& keyword,
                                      const std::string& text) {
  try {
    return pattern_expression(text, rules_.budget());
  } catch (const TooComplex&) {
    throw;
  } catch (const Error& error) {
    document_.leave(schema, keyword, error.what());
    return nullptr;
  }
}

SchemaCompiler::Text SchemaCompiler::text_of(const Shape& shape) {
  Text text{std::nullopt, shape.least_characters, shape.most_characters};
  std::vector<ExpressionPtr> all;
  for (const Json* schema : shape.patterns)
    all.push_back(pattern(schema, "pattern", (*schema)["pattern"].get<std::string>()));
  for (const Json* schema : shape.formats) {
    const auto& name = (*schema)["format"].get_ref<const std::string&>();
    all.push_back(format_expression(name, rules_.budget()));
    if (!all.back() && shape.types == kString)
      document_.note(
          fmt::format("{}.format: \"{}\" is not known", document_.path(schema), name.substr(0, 40)));
  }
  for (ExpressionPtr& one : all) {
    if (!one) continue;
    if (const std::optional<Lengths> lengths = with_lengths(one)) {
      one = lengths->content;
      text.least = std::max(text.least, lengths->least);
      text.most = std::min(text.most, lengths->most);
    }
    Dfa characters = automaton(*one, rules_.budget());
    text.characters =
        text.characters ? intersection(*text.characters, characters, rules_.budget()) : std::move(characters);
  }
  return text;
}

uint32_t SchemaCompiler::string_rule(const Shape& shape) {
  const Text text = text_of(shape);
  if (text.least > text.most) return rules_.string(Dfa());
  if (text.characters) return rules_.string(*text.characters, limit(text.least), limit(text.most));
  return rules_.string(limit(text.least), limit(text.most));
}

Dfa SchemaCompiler::number(const Shape& shape) {
  std::vector<Shape::Bound> lower = shape.lower, upper = shape.upper;
  static const std::map<std::string_view, std::pair<const char*, const char*>> kRanges = {
      {"int8", {"-128", "127"}},
      {"int16", {"-32768", "32767"}},
      {"int32", {"-2147483648", "2147483647"}},
      {"int64", {"-9223372036854775808", "9223372036854775807"}},
      {"uint8", {"0", "255"}},
      {"uint16", {"0", "65535"}},
      {"uint32", {"0", "4294967295"}},
      {"uint64", {"0", "18446744073709551615"}}};
  for (const Json* schema : shape.formats) {
    const auto& name = (*schema)["format"].get_ref<const std::string&>();
    if (const auto range = kRanges.find(name); range != kRanges.end())
      lower.push_back({range->second.first, false}), upper.push_back({range->second.second, false});
    else if ((shape.types & kString) == 0 && name != "float" && name != "double")
      document_.note(fmt::format("{}.format: \"{}\" is not known for numbers", document_.path(schema),
                                 name.substr(0, 40)));
  }
  const auto bound = [](const Shape::Bound& one) { return NumberRule::Bound{one.decimal, one.exclusive}; };
  NumberRule rule{.integer = (shape.types & kNumber) == 0};
  if (!lower.empty()) rule.lower = bound(lower.front());
  if (!upper.empty()) rule.upper = bound(upper.front());
  Budget& budget = rules_.budget();
  Dfa dfa = number_automaton(rule, budget);
  for (size_t i = 1; i < lower.size(); ++i)
    dfa = intersection(dfa, number_automaton({.lower = bound(lower[i])}, budget), budget);
  for (size_t i = 1; i < upper.size(); ++i)
    dfa = intersection(dfa, number_automaton({.upper = bound(upper[i])}, budget), budget);
  for (const std::string& factor : shape.factors) {
    try {
      dfa = intersection(dfa, multiples_automaton(factor, budget), budget);
    } catch (const TooComplex&) {
      throw;
    } catch (const Error& error) {
      document_.leave(first(shape), "multipleOf", error.what());
    }
  }
  return dfa;
}

std::optional<Dfa> SchemaCompiler::strings(const Items& items) {
  const Shape shape = document_.shape(items);
  Budget& budget = rules_.budget();
  if (shape.never || (types_of(shape) & kString) == 0) return Dfa();
  if (!shape.choices.empty()) {
    const Choice choice = shape.choices.front();
    const std::vector<Items> ways = alternatives(items, choice);
    if (choice.exclusive) check_exclusive(choice, ways);
    Nfa nfa(budget);
    const uint32_t start = nfa.add_state();
    nfa.accepting = nfa.add_state();
    for (const Items& way : ways) {
      const std::optional<Dfa> some = strings(way);
      if (!some) return std::nullopt;
      nfa.add_epsilon(append(nfa, *some, start), nfa.accepting);
    }
    Dfa dfa = determinise(nfa);
    trim(dfa);
    return dfa;
  }
  if (shape.values) {
    std::vector<std::string_view> texts;
    for (const Json* value : fitting_values(shape))
      if (value->is_string()) texts.emplace_back(value->get_ref<const std::string&>());
    return text_set(std::move(texts), budget);
  }
  const Text text = text_of(shape);
  if (!text.characters && text.least == 0 && text.most == UINT64_MAX) return std::nullopt;
  const Dfa characters = text.characters ? *text.characters : automaton(*repeat(any_character(), 0), budget);
  return with_length(characters, text.least, text.most, budget);
}

std::optional<uint32_t> SchemaCompiler::plain_rule(const Items& items) {
  Nfa nfa(rules_.budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  nfa.accepting = end;
  if (!append_plain(nfa, items, start, end)) return std::nullopt;
  const uint32_t rule = rules_.builder().add_rule("text");
  rules_.builder().define(rule, std::move(nfa));
  return rule;
}

bool SchemaCompiler::append_plain(Nfa& nfa, const Items& items, uint32_t from, uint32_t to) {
  const Shape shape = document_.shape(items);
  Budget& budget = rules_.budget();
  if (shape.never) return false;
  if (!shape.choices.empty()) {
    const Choice choice = shape.choices.front();
    const std::vector<Items> ways = alternatives(items, choice);
    if (choice.exclusive) check_exclusive(choice, ways);
    bool any = false;
    for (const Items& way : ways) any = append_plain(nfa, way, from, to) || any;
    return any;
  }
  const TypeSet types = types_of(shape);
  if ((types & kNull) != 0) nfa.add_epsilon(nfa.append_bytes("null", from), to);
  if ((types & kString) == 0) return (types & kNull) != 0;
  if (shape.values) {
    std::vector<std::string_view> texts;
    for (const Json* value : fitting_values(shape)) {
      if (!value->is_string()) continue;
      const auto& text = value->get_ref<const std::string&>();
      if (rules_.can_hold_plainly(text)) texts.emplace_back(text);
    }
    nfa.add_call(from, rules_.builder().add_rule("values", text_set(std::move(texts), budget)), to);
    return true;
  }
  const Text text = text_of(shape);
  if (text.least > text.most) return false;
  nfa.add_call(from, rules_.plain_string(text.characters, limit(text.least), limit(text.most)), to);
  return true;
}

}  // namespace sluice::text::grammar
