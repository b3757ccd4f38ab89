// Arrays and objects of schemas: which schemas hold for which part, and who may be there at all.
#include <fmt/format.h>

#include <algorithm>

#include "text/grammar/pattern.h"
#include "text/grammar/schema.h"

namespace sluice::text::grammar {
namespace {

// An automaton that leads nowhere.
Nfa never(Budget& budget) {
  Nfa nfa(budget);
  nfa.add_state();
  nfa.accepting = nfa.add_state();
  return nfa;
}

const Json* member(const Json* schema, const char* key) {
  const auto found = schema->find(key);
  return found == schema->end() ? nullptr : &*found;
}

}  // namespace

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

}  // namespace sluice::text::grammar
