#include "text/grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/grammar/numbers.h"
#include "text/grammar/pattern.h"

namespace sluice::text::grammar {
namespace {

uint32_t limit(uint64_t count) { return count >= kNoLimit ? kNoLimit : static_cast<uint32_t>(count); }

void sort_unique(Items& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

// An automaton that leads nowhere.
Nfa never(Budget& budget) {
  Nfa nfa(budget);
  nfa.add_state();
  nfa.accepting = nfa.add_state();
  return nfa;
}

bool has_parts(const Shape& shape) {
  return std::any_of(shape.schemas.begin(), shape.schemas.end(), [](const Json* schema) {
    for (const char* key : {"properties", "required", "additionalProperties", "patternProperties",
                            "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems"})
      if (schema->contains(key)) return true;
    return false;
  });
}

// The types that may really occur.
TypeSet types_of(const Shape& shape) {
  if (shape.never) return 0;
  if (!shape.values) return shape.types;
  TypeSet types = 0;
  for (const Json& value : *shape.values) types |= type_of_value(value);
  return types & shape.types;
}

const Json* member(const Json* schema, const char* key) {
  const auto found = schema->find(key);
  return found == schema->end() ? nullptr : &*found;
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

void SchemaCompiler::define_array(uint32_t rule, const Shape& shape) {
  struct Lists {
    const Json* prefix = nullptr;
    const Json* rest = nullptr;  ///< null: anything, or nothing behind a prefix
  };
  std::vector<std::pair<const Json*, Lists>> all;
  size_t prefix = 0;
  for (const Json* schema : shape.schemas) {
    Lists lists{member(schema, "prefixItems"), member(schema, "items")};
    if (lists.rest != nullptr && lists.rest->is_array())
      lists = {lists.rest, member(schema, "additionalItems")};
    if (lists.prefix != nullptr) prefix = std::max(prefix, lists.prefix->size());
    if (lists.prefix != nullptr || lists.rest != nullptr) all.emplace_back(schema, lists);
  }
  JsonRules::Array array{.least = limit(shape.least_items), .most = limit(shape.most_items)};
  if (array.least > array.most) return rules_.builder().define(rule, never(rules_.budget()));
  // What holds for item i; nullopt: there is none.
  const auto items_at = [&](size_t i) -> std::optional<Items> {
    Items items;
    for (const auto& [schema, lists] : all) {
      if (lists.prefix != nullptr && i < lists.prefix->size())
        items.push_back({document_.at((*lists.prefix)[i], schema, fmt::format(".prefixItems[{}]", i))});
      else if (lists.rest != nullptr)
        items.push_back({document_.at(*lists.rest, schema, ".items")});
      else
        return std::nullopt;
      if (*items.back().schema == false) return std::nullopt;
    }
    return items;
  };
  for (size_t i = 0; i < prefix; ++i) {
    const std::optional<Items> items = items_at(i);
    if (!items) break;
    array.prefix.push_back(rule_of(*items));
  }
  if (array.prefix.size() == prefix)
    if (const std::optional<Items> items = items_at(prefix)) array.rest = rule_of(*items);
  rules_.define_array(rule, array);
}

// Objects are closed when their schemas say so, and also when they list properties and say nothing about
// others: a model is not asked to make some up.
bool SchemaCompiler::is_closed(const Shape& shape) const {
  bool lists = false, says = false;
  for (const Json* schema : shape.schemas) {
    const Json* additional = member(schema, "additionalProperties");
    if (additional != nullptr && *additional == false) return true;
    says = says || additional != nullptr;
    lists = lists || schema->contains("properties") || schema->contains("patternProperties") ||
            schema->contains("required") || schema->contains("unevaluatedProperties");
  }
  return lists && !says;
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties_of(const Shape& shape) {
  std::vector<Property> out;
  std::set<std::string> seen;
  const auto add = [&](const std::string& key) {
    if (seen.insert(key).second) out.push_back({.key = key});
  };
  for (const Json* schema : shape.schemas)
    if (const Json* properties = member(schema, "properties"))
      for (const auto& [key, value] : properties->items()) add(key);
  for (const std::string& key : shape.required) add(key);
  if (out.size() > 2000) document_.refuse(first(shape), "properties", "too many properties");
  for (Property& property : out) {
    property.required =
        std::find(shape.required.begin(), shape.required.end(), property.key) != shape.required.end();
    for (const Json* schema : shape.schemas) {
      bool named = false;
      const Json* properties = member(schema, "properties");
      if (properties != nullptr && properties->contains(property.key)) {
        property.items.push_back(
            {document_.at((*properties)[property.key], schema, ".properties." + property.key)});
        named = true;
      }
      if (const Json* patterns = member(schema, "patternProperties")) {
        for (const auto& [text, value] : patterns->items()) {
          const ExpressionPtr keys = pattern(schema, "patternProperties", text);
          if (!automaton(*keys, Writing::Plain, rules_.budget()).matches(property.key)) continue;
          property.items.push_back({document_.at(value, schema, ".patternProperties." + text)});
          named = true;
        }
      }
      const Json* additional = member(schema, "additionalProperties");
      if (!named && additional != nullptr)
        property.items.push_back({document_.at(*additional, schema, ".additionalProperties")});
    }
  }
  return out;
}

std::vector<JsonRules::Further> SchemaCompiler::further_of(const Shape& shape,
                                                           const std::vector<Property>& properties) {
  Budget& budget = rules_.budget();
  struct Kind {
    const Json* owner;
    Dfa keys;
    Items items;
  };
  std::vector<Kind> kinds;
  for (const Json* schema : shape.schemas) {
    const Json* patterns = member(schema, "patternProperties");
    if (patterns == nullptr) continue;
    for (const auto& [text, value] : patterns->items()) {
      Kind kind{
          schema, automaton(*pattern(schema, "patternProperties", text), Writing::JsonString, budget), {}};
      kind.items.push_back({document_.at(value, schema, ".patternProperties." + text)});
      for (const Kind& other : kinds)
        if (!intersection(kind.keys, other.keys, budget).states.empty())
          document_.refuse(schema, "patternProperties", "patterns that fit the same name are not supported");
      kinds.push_back(std::move(kind));
    }
  }
  Items others;  // of names that fit no pattern
  for (const Json* schema : shape.schemas) {
    const Json* additional = member(schema, "additionalProperties");
    if (additional == nullptr) continue;
    document_.at(*additional, schema, ".additionalProperties");
    others.push_back({additional});
    for (Kind& kind : kinds)
      if (kind.owner != schema) kind.items.push_back({additional});
  }
  const bool open = !is_closed(shape);
  std::vector<JsonRules::Further> out;
  if (open && properties.empty() && kinds.empty()) return {{rules_.string(), rule_of(others)}};
  std::vector<ExpressionPtr> names;
  names.reserve(properties.size());
  for (const Property& property : properties) names.push_back(literal(property.key));
  const Dfa named = automaton(*choice(names), Writing::JsonString, budget);
  out.reserve(kinds.size() + 1);
  for (const Kind& kind : kinds)
    out.push_back({rules_.string(difference(kind.keys, named, budget)), rule_of(kind.items)});
  if (open) {
    Dfa keys = difference(automaton(*repeat(any_character(), 0), Writing::JsonString, budget), named, budget);
    for (const Kind& kind : kinds) keys = difference(keys, kind.keys, budget);
    out.push_back({rules_.string(keys), rule_of(others)});
  }
  return out;
}

void SchemaCompiler::limit_properties(const Shape& shape, const std::vector<Property>& properties,
                                      JsonRules::Object& object) {
  const auto all = static_cast<uint64_t>(properties.size());
  const auto required = static_cast<uint64_t>(
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; }));
  const Json* schema = first(shape);
  if (shape.least_properties > required) {
    // A name could come twice, so only one more can be promised.
    if (required < all || shape.least_properties > required + 1)
      document_.refuse(
          schema, "minProperties",
          "supported up to the number of required properties, and one more where none is optional");
    object.least = 1;
    if (object.further.empty()) object.least = object.most = 1;  // nothing counts up: no such object
  }
  if (shape.most_properties < all)
    document_.refuse(schema, "maxProperties", "below the number of properties it is not supported");
  if (shape.most_properties != UINT64_MAX && !object.further.empty())
    object.most = limit(shape.most_properties - all);
}

void SchemaCompiler::define_object(uint32_t rule, const Shape& shape) {
  const std::vector<Property> properties = properties_of(shape);
  JsonRules::Object object;
  object.further = further_of(shape, properties);
  limit_properties(shape, properties, object);
  if (object.least > object.most) return rules_.builder().define(rule, never(rules_.budget()));
  for (const Property& property : properties)
    object.properties.push_back({property.key, rule_of(property.items), property.required});
  rules_.define_object(rule, object);
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties() {
  const Shape shape = document_.shape({{&root_}});
  if (!shape.choices.empty())
    document_.refuse(shape.choices.front().owner, "",
                     "anyOf and oneOf of a tool's parameters are not supported");
  if (shape.never || (types_of(shape) & kObject) == 0)
    document_.refuse(&root_, "", "expected a schema of an object");
  if (shape.values) document_.refuse(&root_, "", "enum and const of a tool's parameters are not supported");
  std::vector<Property> out = properties_of(shape);
  JsonRules::Object unused;
  limit_properties(shape, out, unused);
  if (unused.least > 0)
    document_.refuse(&root_, "minProperties", "above the number of required properties it is not supported");
  return out;
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
