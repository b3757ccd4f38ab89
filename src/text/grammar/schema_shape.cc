#include "text/grammar/schema_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "text/grammar/numbers.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace sluice::text::grammar {
namespace {

// Keywords that say nothing about which values are valid.
bool is_annotation(const std::string& key) {
  static const std::set<std::string_view> kNames = {
      "$schema",     "$id",       "id",          "$comment",        "$anchor",          "$defs",
      "definitions", "title",     "description", "default",         "examples",         "example",
      "readOnly",    "writeOnly", "deprecated",  "contentEncoding", "contentMediaType", "discriminator",
      "strict"};
  return kNames.contains(key) || key.starts_with("x-");
}

// The types that a keyword is about; 0: any or none.
TypeSet types_of_keyword(const std::string& key) {
  static const std::map<std::string_view, TypeSet> kTypes = {{"properties", kObject},
                                                             {"required", kObject},
                                                             {"additionalProperties", kObject},
                                                             {"patternProperties", kObject},
                                                             {"propertyNames", kObject},
                                                             {"minProperties", kObject},
                                                             {"maxProperties", kObject},
                                                             {"items", kArray},
                                                             {"prefixItems", kArray},
                                                             {"minItems", kArray},
                                                             {"maxItems", kArray},
                                                             {"additionalItems", kArray},
                                                             {"minLength", kString},
                                                             {"maxLength", kString},
                                                             {"pattern", kString},
                                                             {"minimum", kNumber | kInteger},
                                                             {"maximum", kNumber | kInteger},
                                                             {"multipleOf", kNumber | kInteger},
                                                             {"exclusiveMinimum", kNumber | kInteger},
                                                             {"exclusiveMaximum", kNumber | kInteger}};
  const auto found = kTypes.find(key);
  return found == kTypes.end() ? TypeSet{0} : found->second;
}

}  // namespace

TypeSet type_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kNull;
    case Json::value_t::boolean: return kBoolean;
    case Json::value_t::string: return kString;
    case Json::value_t::array: return kArray;
    case Json::value_t::object: return kObject;
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      return std::floor(number) == number ? kInteger : kNumber;
    }
    default: return kInteger;
  }
}

SchemaDocument::SchemaDocument(const Json& root) : root_(root) { paths_[&root] = "$"; }

std::string SchemaDocument::path(const Json* schema) const {
  const auto found = paths_.find(schema);
  return found == paths_.end() ? "$" : found->second;
}

const Json* SchemaDocument::at(const Json& schema, const Json* parent, const std::string& step) {
  std::string shown = step.size() > 80 ? step.substr(0, utf8_valid_prefix(step.substr(0, 80))) + "..." : step;
  const std::string& above = paths_[parent];
  paths_.try_emplace(&schema, above.size() > 400 ? "..." + shown : above + shown);
  return &schema;
}

void SchemaDocument::refuse(const Json* schema, const std::string& keyword, const std::string& why) const {
  fail("{}{}{}: {}", path(schema), keyword.empty() ? "" : ".", keyword.substr(0, 80), why);
}

Shape SchemaDocument::shape(const Items& items) {
  Shape shape;
  decided_.clear();
  for (const Item& item : items)
    if (item.decided) decided_.insert(item.schema);
  for (const Item& item : items) add(item.schema, shape);
  return shape;
}

void SchemaDocument::add(const Json* at_hand, Shape& shape) {
  const Json& schema = *at_hand;
  if (open_.size() > 100 || shape.schemas.size() > 1000) refuse(&schema, "", "nested too deep");
  if (schema.is_boolean()) {
    shape.never = shape.never || !schema.get<bool>();
    return;
  }
  if (!schema.is_object()) refuse(&schema, "", "expected a schema: an object, true or false");
  if (std::find(open_.begin(), open_.end(), &schema) != open_.end())
    refuse(&schema, "", "refers to itself without a value in between");
  if (std::find(shape.schemas.begin(), shape.schemas.end(), &schema) != shape.schemas.end()) return;
  shape.schemas.push_back(&schema);
  open_.push_back(&schema);
  TypeSet implied = 0;
  for (const auto& [key, value] : schema.items()) {
    implied |= types_of_keyword(key);
    if (key == "$ref") {
      if (!value.is_string()) refuse(&schema, key, "expected a string");
      add(target(&schema, value.get_ref<const std::string&>()), shape);
    } else if (key == "allOf") {
      if (!value.is_array() || value.empty()) refuse(&schema, key, "expected a list of schemas");
      for (size_t i = 0; i < value.size(); ++i)
        add(at(value[i], &schema, fmt::format(".allOf[{}]", i)), shape);
    } else {
      read_keyword(&schema, key, value, shape);
    }
  }
  open_.pop_back();
  // Keywords that are about one type mean that type, when nothing says more.
  const bool says_type = schema.contains("type") || schema.contains("enum") || schema.contains("const");
  if (!says_type && implied != 0) shape.types &= implied;
}

void SchemaDocument::read_keyword(const Json* schema, const std::string& key, const Json& value,
                                  Shape& shape) {
  if (key == "anyOf" || key == "oneOf") {
    if (!value.is_array() || value.empty()) refuse(schema, key, "expected a list of schemas");
    for (size_t i = 0; i < value.size(); ++i) at(value[i], schema, fmt::format(".{}[{}]", key, i));
    if (schema->contains("anyOf") && schema->contains("oneOf"))
      refuse(schema, key, "anyOf and oneOf in one schema are not supported");
    if (!decided_.contains(schema)) shape.choices.push_back({schema, &value, key == "oneOf"});
    return;
  }
  if (read_values(schema, key, value, shape) || read_limits(schema, key, value, shape) ||
      read_bounds(schema, key, value, shape) || read_parts(schema, key, value) || is_annotation(key))
    return;
  static const std::set<std::string_view> kKnown = {"not",
                                                    "if",
                                                    "then",
                                                    "else",
                                                    "contains",
                                                    "minContains",
                                                    "maxContains",
                                                    "dependentRequired",
                                                    "dependentSchemas",
                                                    "dependencies",
                                                    "unevaluatedItems",
                                                    "unevaluatedProperties",
                                                    "propertyNames",
                                                    "uniqueItems",
                                                    "$dynamicRef",
                                                    "$recursiveRef",
                                                    "contentSchema"};
  refuse(schema, key, kKnown.contains(key) ? "this keyword is not supported" : "this keyword is not known");
}

TypeSet SchemaDocument::read_types(const Json* schema, const Json& value) const {
  static const std::map<std::string_view, TypeSet> kNames = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber | kInteger},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  TypeSet types = 0;
  const auto add_name = [&](const Json& name) {
    const auto found = name.is_string() ? kNames.find(name.get_ref<const std::string&>()) : kNames.end();
    if (found == kNames.end())
      refuse(schema, "type", "expected null, boolean, integer, number, string, array or object");
    types |= found->second;
  };
  if (value.is_array()) {
    for (const Json& name : value) add_name(name);
  } else {
    add_name(value);
  }
  return types;
}

bool SchemaDocument::read_values(const Json* schema, const std::string& key, const Json& value,
                                 Shape& shape) {
  if (key == "type") {
    TypeSet types = read_types(schema, value);
    if (schema->value("nullable", Json(false)) == true) types |= kNull;
    shape.types &= types;
    return true;
  }
  if (key == "nullable") {
    if (!value.is_boolean()) refuse(schema, key, "expected true or false");
    if (value.get<bool>() && !schema->contains("type")) refuse(schema, key, "supported beside type only");
    return true;
  }
  if (key == "const" || key == "enum") {
    if (key == "enum" && (!value.is_array() || value.empty()))
      refuse(schema, key, "expected a list of values");
    const std::vector<Json> values =
        key == "enum" ? std::vector<Json>(value.begin(), value.end()) : std::vector<Json>{value};
    if (!shape.values) {
      shape.values = values;
    } else {  // members in another order are the same object
      std::erase_if(*shape.values, [&](const Json& one) {
        return std::none_of(values.begin(), values.end(),
                            [&](const Json& other) { return nlohmann::json(one) == nlohmann::json(other); });
      });
    }
    return true;
  }
  if (key == "pattern" || key == "format") {
    if (!value.is_string()) refuse(schema, key, "expected a string");
    (key == "pattern" ? shape.patterns : shape.formats).push_back(schema);
    return true;
  }
  if (key == "required") {
    if (!value.is_array()) refuse(schema, key, "expected a list of names");
    for (const Json& name : value) {
      if (!name.is_string()) refuse(schema, key, "expected a list of names");
      if (std::find(shape.required.begin(), shape.required.end(), name) == shape.required.end())
        shape.required.push_back(name.get<std::string>());
      if (shape.required.size() > 10000) refuse(schema, key, "too many names");
    }
    return true;
  }
  return false;
}

uint64_t SchemaDocument::count(const Json* schema, const std::string& key, const Json& value) const {
  const bool whole = value.is_number() && type_of_value(value) == kInteger && value.get<double>() >= 0;
  if (!whole) refuse(schema, key, "expected a whole number of at least 0");
  return static_cast<uint64_t>(std::min(value.get<double>(), 4e9));
}

bool SchemaDocument::read_limits(const Json* schema, const std::string& key, const Json& value,
                                 Shape& shape) {
  struct Limits {
    const char *least_key, *most_key;
    uint64_t &least, &most;
  };
  for (const Limits& limits :
       {Limits{"minLength", "maxLength", shape.least_characters, shape.most_characters},
        Limits{"minItems", "maxItems", shape.least_items, shape.most_items},
        Limits{"minProperties", "maxProperties", shape.least_properties, shape.most_properties}}) {
    if (key == limits.least_key)
      limits.least = std::max(limits.least, count(schema, key, value));
    else if (key == limits.most_key)
      limits.most = std::min(limits.most, count(schema, key, value));
    else
      continue;
    return true;
  }
  if (key == "uniqueItems" && value == false) return true;
  return false;
}

bool SchemaDocument::read_bounds(const Json* schema, const std::string& key, const Json& value,
                                 Shape& shape) {
  const bool lower = key == "minimum" || key == "exclusiveMinimum";
  if (lower || key == "maximum" || key == "exclusiveMaximum") {
    if (value.is_boolean())
      refuse(schema, key, "expected a number (draft 4's true and false are not supported)");
    if (!value.is_number()) refuse(schema, key, "expected a number");
    (lower ? shape.lower : shape.upper).push_back({value.dump(), key.starts_with("exclusive")});
    return true;
  }
  if (key != "multipleOf") return false;
  if (!value.is_number() || type_of_value(value) != kInteger || value.get<double>() < 1 ||
      value.get<double>() > kMostFactor)
    refuse(schema, key, fmt::format("supported for whole numbers from 1 to {}", kMostFactor));
  shape.factors.push_back(value.get<int>());
  return true;
}

// Schemas of parts are read when their parts are.
bool SchemaDocument::read_parts(const Json* schema, const std::string& key, const Json& value) const {
  if (key == "properties" || key == "patternProperties") {
    if (!value.is_object()) refuse(schema, key, "expected an object of schemas");
    return true;
  }
  if (key == "prefixItems") {
    if (!value.is_array()) refuse(schema, key, "expected a list of schemas");
    return true;
  }
  if (key == "unevaluatedProperties") return value == false && !schema->contains("additionalProperties");
  return key == "additionalProperties" || key == "items" || key == "additionalItems";
}

// What "#/a/b" points to.
const Json* SchemaDocument::target(const Json* schema, const std::string& reference) {
  if (reference.empty() || reference[0] != '#')
    refuse(schema, "$ref", "only references into the schema itself (#...) are supported");
  std::string pointer;
  for (size_t i = 1; i < reference.size(); ++i) {
    const std::string digits = reference[i] == '%' ? reference.substr(i + 1, 2) : std::string();
    const bool coded =
        digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    pointer += coded ? static_cast<char>(std::stoi(digits, nullptr, 16)) : reference[i];
    if (coded) i += 2;
  }
  try {
    const Json::json_pointer at(pointer);
    if (root_.contains(at)) {
      const Json& found = root_.at(at);
      paths_.try_emplace(&found, "$" + (pointer.size() > 400 ? "..." : pointer));
      return &found;
    }
  } catch (const Json::exception&) {  // no pointer, or one into something that is no container
  }
  refuse(schema, "$ref", "points to nothing: " + reference.substr(0, 80));
}

TypeSet types_of(const Shape& shape) {
  if (shape.never) return 0;
  if (!shape.values) return shape.types;
  TypeSet types = 0;
  for (const Json& value : *shape.values) types |= type_of_value(value);
  return types & shape.types;
}

}  // namespace sluice::text::grammar
