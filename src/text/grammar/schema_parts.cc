// Arrays and objects of schemas: which schemas hold for which part, and who may be there at all.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "text/grammar/pattern.h"
#include "text/grammar/schema.h"

namespace sluice::text::grammar {
namespace {

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
  if (array.least > array.most) return;  // never defined: matches nothing
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
  if (shape.unique != nullptr && shape.most_items > 1) {
    const std::optional<Items> items = prefix == 0 ? items_at(0) : std::nullopt;
    if (items && define_set(rule, shape, *items)) return;
    if (document_.rule().unkept == Unkept::UniqueMayLack)
      document_.note(document_.path(shape.unique) + ".uniqueItems: kept for few known values only");
    else
      document_.leave(shape.unique, "uniqueItems", "supported for lists of few known values only");
  }
  rules_.budget().spend(static_cast<int64_t>(prefix * all.size()));
  for (size_t i = 0; i < prefix; ++i) {
    const std::optional<Items> items = items_at(i);
    if (!items) break;
    array.prefix.push_back(rule_of(*items));
  }
  if (array.prefix.size() == prefix)
    if (const std::optional<Items> items = items_at(prefix)) array.rest = rule_of(*items);
  rules_.define_array(rule, array);
}

// Lists whose items are all different ones, of few values: in any order where these are very few, else in the
// schema's.
bool SchemaCompiler::define_set(uint32_t rule, const Shape& shape, const Items& items) {
  constexpr size_t kFew = 7, kMany = 300;
  const Shape item = document_.shape(items);
  if (!item.choices.empty() || item.never) return false;
  static const Json kWords = Json::array({nullptr, true, false});
  std::vector<const Json*> values;
  if (item.values) {
    values = fitting_values(item);
  } else {
    if ((item.types & ~(kNull | kBoolean)) != 0) return false;
    for (const Json& word : kWords)
      if ((type_of_value(word) & item.types) != 0) values.push_back(&word);
  }
  std::set<std::string> seen;
  std::erase_if(values, [&](const Json* value) { return !seen.insert(canonical(*value)).second; });
  if (values.size() > kMany) return false;
  std::vector<uint32_t> rules;
  rules.reserve(values.size());
  for (const Json* value : values) rules.push_back(rules_.one_of({value}));
  rules_.define_set(rule, rules, values.size() <= kFew, limit(shape.least_items), limit(shape.most_items));
  return true;
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

namespace {

/// Members of an object by name, which ordered objects find one by one.
std::unordered_map<std::string_view, const Json*> by_name(const Json* object) {
  std::unordered_map<std::string_view, const Json*> out;
  if (object != nullptr)
    for (const auto& [key, value] : object->items()) out.emplace(key, &value);
  return out;
}

}  // namespace

std::optional<Dfa> SchemaCompiler::names_of(const Shape& shape) {
  std::optional<Dfa> out;
  for (const Json* schema : shape.names) {
    const Json* names = document_.at((*schema)["propertyNames"], schema, ".propertyNames");
    if (*names == true) continue;
    static const Json kString = {{"type", "string"}};
    const std::optional<Dfa> some = strings({{names}, {&kString}});
    if (some) out = out ? intersection(*out, *some, rules_.budget()) : *some;
  }
  return out;
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties_of(const Shape& shape) {
  constexpr size_t kMostProperties = 10'000;
  std::vector<Property> out;
  std::unordered_set<std::string> seen;
  const auto add = [&](const std::string& key) {
    rules_.budget().spend(8, static_cast<int64_t>(sizeof(Property) + 2 * key.size() + 100));
    if (seen.insert(key).second) out.push_back({.key = key});
  };
  struct Owner {
    const Json* schema;
    std::unordered_map<std::string_view, const Json*> properties;
    std::vector<std::tuple<std::string, Dfa, const Json*>> patterns;
    const Json* additional;
  };
  std::vector<Owner> owners;
  for (const Json* schema : shape.schemas) {
    Owner owner{schema, by_name(member(schema, "properties")), {}, member(schema, "additionalProperties")};
    rules_.budget().spend(static_cast<int64_t>(owner.properties.size()));
    if (const Json* properties = member(schema, "properties"))
      for (const auto& [key, value] : properties->items()) add(key);
    if (const Json* patterns = member(schema, "patternProperties"))
      for (const auto& [text, value] : patterns->items())
        if (const ExpressionPtr keys = pattern(schema, "patternProperties", text))
          owner.patterns.emplace_back(text, automaton(*keys, rules_.budget()), &value);
    if (!owner.properties.empty() || !owner.patterns.empty() || owner.additional != nullptr)
      owners.push_back(std::move(owner));
  }
  for (const std::string& key : shape.required) add(key);
  if (out.size() > kMostProperties) document_.refuse(first(shape), "properties", "too many properties");
  const std::unordered_set<std::string_view> required(shape.required.begin(), shape.required.end());
  const std::optional<Dfa> names = names_of(shape);
  for (Property& property : out) {
    property.required = required.contains(property.key);
    for (const Owner& owner : owners) {
      rules_.budget().spend(4 + static_cast<int64_t>(owner.patterns.size() * property.key.size()));
      bool named = false;
      if (const auto found = owner.properties.find(property.key); found != owner.properties.end()) {
        property.items.push_back({document_.at(*found->second, owner.schema, ".properties." + property.key)});
        named = true;
      }
      for (const auto& [text, keys, value] : owner.patterns) {
        if (!keys.matches(property.key)) continue;
        property.items.push_back({document_.at(*value, owner.schema, ".patternProperties." + text)});
        named = true;
      }
      if (!named && owner.additional != nullptr)
        property.items.push_back({document_.at(*owner.additional, owner.schema, ".additionalProperties")});
    }
    static const Json kNever = false;
    if (names && !names->matches(property.key)) property.items.push_back({&kNever});
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
      const ExpressionPtr keys = pattern(schema, "patternProperties", text);
      if (!keys) continue;
      Kind kind{schema, automaton(*keys, budget), {}};
      kind.items.push_back({document_.at(value, schema, ".patternProperties." + text)});
      for (const Kind& other : kinds) {
        if (intersection(kind.keys, other.keys, budget).empty()) continue;
        document_.leave(schema, "patternProperties", "patterns that fit the same name are not supported");
        kind.keys = difference(kind.keys, other.keys, budget);
      }
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
  if (!open && kinds.empty()) return {};
  const std::optional<Dfa> names = names_of(shape);
  std::vector<JsonRules::Further> out;
  if (open && properties.empty() && kinds.empty() && !names) return {{rules_.string(), rule_of(others)}};
  std::vector<std::string_view> known;
  known.reserve(properties.size());
  for (const Property& property : properties) known.emplace_back(property.key);
  const Dfa named = text_set(std::move(known), budget);
  const auto add = [&](const Dfa& keys, const Items& items) {
    const Dfa free = difference(keys, named, budget);
    out.push_back({rules_.string(names ? intersection(free, *names, budget) : free), rule_of(items)});
  };
  for (const Kind& kind : kinds) add(kind.keys, kind.items);
  if (open) {
    Dfa keys = automaton(*repeat(any_character(), 0), budget);
    for (const Kind& kind : kinds) keys = difference(keys, kind.keys, budget);
    add(keys, others);
  }
  return out;
}

void SchemaCompiler::limit_properties(const Shape& shape, const std::vector<Property>& properties,
                                      JsonRules::Object& object) {
  const auto all = static_cast<uint64_t>(properties.size());
  const auto required = static_cast<uint64_t>(
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; }));
  object.least = shape.least_properties > required ? limit(shape.least_properties) : 0;
  object.most = limit(shape.most_properties);
  if (object.further.empty() && shape.most_properties >= all) object.most = kNoLimit;
  // A name could come twice, so of further ones only one can be promised.
  if (object.least > 0 && !object.further.empty() && shape.least_properties > all + 1) {
    document_.leave(first(shape), "minProperties",
                    "supported up to the number of known properties, and one more");
    object.least = std::min<uint32_t>(object.least, limit(all + 1));
  }
}

void SchemaCompiler::define_object(uint32_t rule, const Shape& shape) {
  std::vector<Property> properties = properties_of(shape);
  JsonRules::Object object;
  object.further = further_of(shape, properties);
  limit_properties(shape, properties, object);
  if (object.least > object.most) return;  // never defined: matches nothing
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
  const std::vector<Property> out = properties_of(shape);
  const auto required = std::count_if(out.begin(), out.end(), [](const Property& p) { return p.required; });
  if (shape.least_properties > static_cast<uint64_t>(required))
    document_.leave(&root_, "minProperties", "above the number of required properties it is not supported");
  if (shape.most_properties < out.size())
    document_.leave(&root_, "maxProperties", "below the number of properties it is not supported");
  return out;
}

}  // namespace sluice::text::grammar
