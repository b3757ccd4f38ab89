#include "text/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>

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
  rules_.budget().spend(200);
  if (++depth_ > 200) fail("{}: nested too deep", document_.path(items.front().schema));
  define(rule, items);
  --depth_;
  return rule;
}

uint32_t SchemaCompiler::define(uint32_t rule, const Items& items) {
  const Shape shape = document_.shape(items);
  rules_.budget().spend(static_cast<int64_t>(shape.schemas.size()) * 20);
  if (!shape.never && !shape.choices.empty()) return choice_rule(rule, items, shape.choices.front());
  Nfa nfa(rules_.budget());
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  nfa.accepting = end;
  if (shape.values && !shape.never) {
    nfa.add_epsilon(append_values(nfa, shape), end);
  } else if (!shape.never) {
    const auto add_word = [&](const char* word) { nfa.add_epsilon(nfa.append_bytes(word, start), end); };
    if ((shape.types & kNull) != 0) add_word("null");
    if ((shape.types & kBoolean) != 0) add_word("true"), add_word("false");
    if ((shape.types & kString) != 0) nfa.add_call(start, string_rule(shape), end);
    if ((shape.types & (kNumber | kInteger)) != 0) nfa.add_epsilon(append(nfa, number(shape), start), end);
    if ((shape.types & kArray) != 0) {
      const uint32_t array = rules_.builder().add_rule(document_.path(items.front().schema));
      define_array(array, shape);
      nfa.add_call(start, array, end);
    }
    if ((shape.types & kObject) != 0) {
      const uint32_t object = rules_.builder().add_rule(document_.path(items.front().schema));
      define_object(object, shape);
      nfa.add_call(start, object, end);
    }
  }
  rules_.builder().define(rule, std::move(nfa));
  return rule;
}

std::vector<Items> SchemaCompiler::alternatives(const Items& items, const Choice& choice) {
  Items base = items;
  base.push_back({choice.owner, true});
  std::vector<Items> out;
  for (const Json& alternative : *choice.alternatives) {
    const Shape alone = document_.shape({{&alternative}});
    for (const Item& item : base)
      if (item.decided &&
          std::find(alone.schemas.begin(), alone.schemas.end(), item.schema) != alone.schemas.end())
        document_.refuse(&alternative, "", "refers to itself without a value in between");
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
  for (const Items& way : ways) nfa.add_call(start, rule_of(way), end);
  nfa.accepting = end;
  rules_.builder().define(rule, std::move(nfa));
  return rule;
}

void SchemaCompiler::check_exclusive(const Choice& choice, const std::vector<Items>& ways) {
  for (size_t i = 0; i < ways.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      rules_.budget().spend(100);
      if (disjoint(ways[i], ways[j], 0)) continue;
      document_.refuse(
          choice.owner, "oneOf",
          fmt::format("alternatives {} and {} may both hold for one value; anyOf does without the check", j,
                      i));
    }
  }
}

// Whether no document made for one is valid for the other. Not found out is no.
bool SchemaCompiler::disjoint(const Items& left, const Items& right, int depth) {
  const Shape a = document_.shape(left), b = document_.shape(right);
  const TypeSet common = types_of(a) & types_of(b);
  if (common == 0) return true;
  if (a.values && b.values) {
    return std::none_of(a.values->begin(), a.values->end(), [&](const Json& one) {
      return std::any_of(b.values->begin(), b.values->end(),
                         [&](const Json& other) { return nlohmann::json(one) == nlohmann::json(other); });
    });
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
uint32_t SchemaCompiler::append_values(Nfa& nfa, const Shape& shape) {
  const uint32_t end = nfa.add_state();
  const std::optional<Dfa> content =
      (shape.types & kString) != 0 ? string_content(shape, Writing::JsonString) : std::nullopt;
  for (const Json& value : *shape.values) {
    if ((type_of_value(value) & shape.types) == 0) continue;
    if (value.is_structured() && has_parts(shape))
      document_.refuse(first(shape), "enum",
                       "lists and objects are not supported beside keywords about parts");
    if (value.is_number()) {
      Shape bounds = shape;
      bounds.types = kNumber | kInteger;  // 2.0 is an integer, but is not written like one
      if ((!shape.lower.empty() || !shape.upper.empty() || !shape.factors.empty() ||
           !shape.formats.empty()) &&
          !number(bounds).matches(value.dump()))
        continue;
    }
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      const auto length = code_points(text).size();
      const std::string quoted = value.dump();
      if (content && !content->matches(quoted.substr(1, quoted.size() - 2))) continue;
      if (length < shape.least_characters || length > shape.most_characters) continue;
    }
    nfa.add_epsilon(rules_.append_value(nfa, value, 0), end);
  }
  return end;
}

ExpressionPtr SchemaCompiler::pattern(const Json* schema, const std::string& keyword,
                                      const std::string& text) {
  try {
    return pattern_expression(text);
  } catch (const Error& error) {
    document_.refuse(schema, keyword, error.what());
  }
}

// The characters of strings; nullopt: any, only their number may be limited.
std::optional<Dfa> SchemaCompiler::string_content(const Shape& shape, Writing writing) {
  std::vector<ExpressionPtr> all;
  for (const Json* schema : shape.patterns)
    all.push_back(pattern(schema, "pattern", (*schema)["pattern"].get<std::string>()));
  for (const Json* schema : shape.formats) {
    const auto& name = (*schema)["format"].get_ref<const std::string&>();
    all.push_back(format_expression(name));
    if (!all.back())
      document_.refuse(schema, "format",
                       fmt::format("\"{}\" is not supported for strings", name.substr(0, 40)));
  }
  if (all.empty()) return std::nullopt;
  if (shape.least_characters > 0 || shape.most_characters != UINT64_MAX) {
    constexpr uint64_t kMost = 10000;
    if (shape.least_characters > kMost ||
        (shape.most_characters != UINT64_MAX && shape.most_characters > kMost))
      document_.refuse(first(shape), "",
                       fmt::format("lengths above {} are not supported beside pattern and format", kMost));
    all.push_back(repeat(any_character(), static_cast<int>(shape.least_characters),
                         shape.most_characters == UINT64_MAX
                             ? Expression::kForever
                             : static_cast<int>(std::max(shape.most_characters, shape.least_characters))));
  }
  Dfa content = automaton(*all.front(), writing, rules_.budget());
  for (size_t i = 1; i < all.size(); ++i)
    content = intersection(content, automaton(*all[i], writing, rules_.budget()), rules_.budget());
  return content;
}

uint32_t SchemaCompiler::string_rule(const Shape& shape) {
  if (shape.least_characters > shape.most_characters) return rules_.string(Dfa());
  if (const std::optional<Dfa> content = string_content(shape, Writing::JsonString))
    return rules_.string(*content);
  return rules_.string(limit(shape.least_characters), limit(shape.most_characters));
}

Dfa SchemaCompiler::number(const Shape& shape) {
  std::vector<Shape::Bound> lower = shape.lower, upper = shape.upper;
  const bool only_numbers = (shape.types & kString) == 0;
  for (const Json* schema : shape.formats) {
    const auto& name = (*schema)["format"].get_ref<const std::string&>();
    if (name == "int32")
      lower.push_back({"-2147483648", false}), upper.push_back({"2147483647", false});
    else if (name == "int64")
      lower.push_back({"-9223372036854775808", false}), upper.push_back({"9223372036854775807", false});
    else if (only_numbers && name != "float" && name != "double")
      document_.refuse(schema, "format",
                       fmt::format("\"{}\" is not supported for numbers", name.substr(0, 40)));
  }
  try {
    NumberRule rule{.integer = (shape.types & kNumber) == 0 || !shape.factors.empty()};
    const auto bound = [](const Shape::Bound& one) { return NumberRule::Bound{one.decimal, one.exclusive}; };
    if (!lower.empty()) rule.lower = bound(lower.front());
    if (!upper.empty()) rule.upper = bound(upper.front());
    Budget& budget = rules_.budget();
    Dfa dfa = number_automaton(rule, budget);
    for (size_t i = 1; i < lower.size(); ++i)
      dfa = intersection(dfa, number_automaton({.lower = bound(lower[i])}, budget), budget);
    for (size_t i = 1; i < upper.size(); ++i)
      dfa = intersection(dfa, number_automaton({.upper = bound(upper[i])}, budget), budget);
    for (const int factor : shape.factors) dfa = intersection(dfa, multiples_automaton(factor), budget);
    return dfa;
  } catch (const Error& error) {
    fail("{}: {}", document_.path(first(shape)), error.what());
  }
}

bool SchemaCompiler::may_be_string(const Items& items) {
  const Shape shape = document_.shape(items);
  if (!shape.choices.empty()) {
    const std::vector<Items> ways = alternatives(items, shape.choices.front());
    return std::any_of(ways.begin(), ways.end(), [&](const Items& way) { return may_be_string(way); });
  }
  return (types_of(shape) & kString) != 0;
}

Dfa SchemaCompiler::plain_text(const Items& items) {
  const Shape shape = document_.shape(items);
  Budget& budget = rules_.budget();
  Nfa nfa(budget);
  nfa.accepting = (nfa.add_state(), nfa.add_state());
  if (!shape.never && !shape.choices.empty()) {
    const Choice choice = shape.choices.front();
    const std::vector<Items> ways = alternatives(items, choice);
    if (choice.exclusive) check_exclusive(choice, ways);
    for (const Items& way : ways) nfa.add_epsilon(append(nfa, plain_text(way), 0), nfa.accepting);
  } else {
    const TypeSet types = types_of(shape);
    if ((types & kNull) != 0) nfa.add_epsilon(nfa.append_bytes("null", 0), nfa.accepting);
    if ((types & kString) != 0) {
      std::optional<Dfa> content = string_content(shape, Writing::Plain);
      const auto least = shape.least_characters, most = shape.most_characters;
      if (!content) {
        if (least > 10000 || (most != UINT64_MAX && most > 10000))
          document_.refuse(first(shape), "maxLength", "above 10000 it is not supported here");
        content = automaton(
            *repeat(any_character(), static_cast<int>(least),
                    most == UINT64_MAX ? Expression::kForever : static_cast<int>(std::max(least, most))),
            Writing::Plain, budget);
      }
      if (shape.values) {
        std::vector<ExpressionPtr> texts;
        for (const Json& value : *shape.values)
          if (value.is_string()) texts.push_back(literal(value.get_ref<const std::string&>()));
        content = intersection(*content, automaton(*choice(texts), Writing::Plain, budget), budget);
      }
      content = intersection(*content, without({kValueClose}, Writing::Plain, budget), budget);
      nfa.add_epsilon(append(nfa, *content, 0), nfa.accepting);
    }
  }
  Dfa dfa = determinise(nfa);
  trim(dfa);
  return dfa;
}

}  // namespace sluice::text::grammar
