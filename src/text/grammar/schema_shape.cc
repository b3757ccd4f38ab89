#include "text/grammar/schema_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "text/grammar/numbers.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace sluice::text::grammar {
namespace {

// Keywords that say nothing about which values are valid.
bool is_annotation(const std::string& key) {
  static const std::set<std::string_view> kNames = {"$schema",
                                                    "$id",
                                                    "id",
                                                    "$comment",
                                                    "$anchor",
                                                    "$defs",
                                                    "$dynamicAnchor",
                                                    "definitions",
                                                    "title",
                                                    "$vocabulary",
                                                    "nullable",
                                                    "description",
                                                    "default",
                                                    "examples",
                                                    "example",
                                                    "readOnly",
                                                    "writeOnly",
                                                    "deprecated",
                                                    "contentEncoding",
                                                    "contentMediaType",
                                                    "contentSchema",
                                                    "discriminator",
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
                                                             {"uniqueItems", kArray},
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

std::string canonical(const Json& value) {
  std::string out;
  switch (value.type()) {
    case Json::value_t::array:
      for (const Json& item : value) out += (out.empty() ? "[" : ",") + canonical(item);
      return out.empty() ? "[]" : out + "]";
    case Json::value_t::object: {
      std::map<std::string, std::string> members;
      for (const auto& [key, member] : value.items()) members[json_quote(key)] = canonical(member);
      for (const auto& [key, member] : members) out += (out.empty() ? "{" : ",") + key + ":" + member;
      return out.empty() ? "{}" : out + "}";
    }
    case Json::value_t::number_float:
      if (const double number = value.get<double>(); std::floor(number) == number && std::abs(number) < 9e15)
        return std::to_string(static_cast<int64_t>(number));
      return value.dump();
    case Json::value_t::string: return json_quote(value.get_ref<const std::string&>());
    default: return value.dump();
  }
}

SchemaDocument::SchemaDocument(const Json& root, Budget& budget, SchemaRule rule)
    : root_(root), budget_(budget), rule_(rule) {
  paths_[&root] = "$";
  find_names();
}

// Every $id and $anchor, and how large the document is.
void SchemaDocument::find_names() {
  std::vector<std::pair<const Json*, int>> work = {{&root_, 0}};
  while (!work.empty()) {
    const auto [at, depth] = work.back();
    work.pop_back();
    budget_.spend(1 + static_cast<int64_t>(at->size()) / 4);
    if (depth > kJsonDepth) fail("nested too deep");
    if (!at->is_structured()) continue;
    for (const auto& [key, value] : at->items()) {
      if (value.is_structured()) work.emplace_back(&value, depth + 1);
      if (!at->is_object() || !value.is_string() || !key.starts_with('$')) continue;
      const auto& name = value.get_ref<const std::string&>();
      if (key == "$anchor" || key == "$dynamicAnchor") named_.try_emplace("#" + name, at);
      if (key == "$id") named_.try_emplace(name, at);
    }
  }
}

std::string SchemaDocument::path(const Json* schema) const {
  const auto found = paths_.find(schema);
  return found == paths_.end() ? "$" : found->second;
}

const Json* SchemaDocument::at(const Json& schema, const Json* parent, const std::string& step) {
  std::string shown = step.size() > 80 ? step.substr(0, utf8_valid_prefix(step.substr(0, 80))) + "..." : step;
  budget_.spend(2, 160);
  const std::string& above = paths_[parent];
  paths_.try_emplace(&schema, above.size() > 400 ? "..." + shown : above + shown);
  return &schema;
}

void SchemaDocument::refuse(const Json* schema, const std::string& keyword, const std::string& why) const {
  fail("{}{}{}: {}", path(schema), keyword.empty() ? "" : ".", keyword.substr(0, 80), why);
}

void SchemaDocument::note(const std::string& line) const {
  constexpr size_t kMostNotes = 20;
  if (rule_.notes != nullptr && rule_.notes->size() < kMostNotes) rule_.notes->push_back(line);
}

void SchemaDocument::leave(const Json* schema, const std::string& keyword, const std::string& why) const {
  try {
    refuse(schema, keyword, why);
  } catch (const Error& error) {
    if (rule_.unkept != Unkept::Unbound) throw;
    note(error.what());
  }
}

Shape SchemaDocument::shape(const Items& items) {
  Shape shape;
  decided_.clear();
  open_.clear();
  for (const Item& item : items)
    if (item.decided != 0) decided_[item.schema] |= item.decided;
  for (const Item& item : items) add(item.schema, shape);
  return shape;
}

void SchemaDocument::add(const Json* at_hand, Shape& shape) {
  const Json& schema = *at_hand;
  budget_.spend(static_cast<int64_t>(20 + 4 * schema.size() + shape.schemas.size()));
  if (open_.size() > 100 || shape.schemas.size() > 1000) refuse(&schema, "", "nested too deep");
  if (schema.is_boolean()) {
    shape.never = shape.never || !schema.get<bool>();
    return;
  }
  if (!schema.is_object()) return leave(&schema, "", "expected a schema: an object, true or false");
  if (std::find(open_.begin(), open_.end(), &schema) != open_.end())
    return leave(&schema, "", "refers to itself without a value in between");
  if (std::find(shape.schemas.begin(), shape.schemas.end(), &schema) != shape.schemas.end()) return;
  shape.schemas.push_back(&schema);
  open_.push_back(&schema);
  TypeSet implied = 0;
  for (const auto& [key, value] : schema.items()) {
    implied |= types_of_keyword(key);
    const size_t open = open_.size();
    try {
      read(&schema, key, value, shape);
    } catch (const TooComplex&) {
      throw;
    } catch (const Error& error) {
      if (rule_.unkept != Unkept::Unbound) throw;
      open_.resize(open);
      note(error.what());
    }
  }
  open_.pop_back();
  // Keywords that are about one type mean that type, when nothing says more.
  const bool says_type = schema.contains("type") || schema.contains("enum") || schema.contains("const");
  if (!says_type && implied != 0) shape.types &= implied;
}

void SchemaDocument::read(const Json* schema, const std::string& key, const Json& value, Shape& shape) {
  if (key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef") {
    if (!value.is_string()) refuse(schema, key, "expected a string");
    return add(target(schema, value.get_ref<const std::string&>()), shape);
  }
  if (key != "allOf") return read_keyword(schema, key, value, shape);
  if (!value.is_array() || value.empty()) refuse(schema, key, "expected a list of schemas");
  for (size_t i = 0; i < value.size(); ++i) add(at(value[i], schema, fmt::format(".allOf[{}]", i)), shape);
}

void SchemaDocument::read_keyword(const Json* schema, const std::string& key, const Json& value,
                                  Shape& shape) {
  if (key == "anyOf" || key == "oneOf") {
    if (!value.is_array() || value.empty()) refuse(schema, key, "expected a list of schemas");
    const bool exclusive = key == "oneOf";
    const auto decided = decided_.find(schema);
    if (decided != decided_.end() && (decided->second & (exclusive ? kOneOf : kAnyOf)) != 0) return;
    for (size_t i = 0; i < value.size(); ++i) at(value[i], schema, fmt::format(".{}[{}]", key, i));
    shape.choices.push_back({schema, &value, exclusive});
    return;
  }
  if (key == "not" && read_not(schema, value, shape)) return;
  if (read_values(schema, key, value, shape) || read_limits(schema, key, value, shape) ||
      read_bounds(schema, key, value, shape) || read_parts(schema, key, value, shape) || is_annotation(key))
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
                                                    "unevaluatedProperties"};
  if (kKnown.contains(key)) refuse(schema, key, "this keyword is not supported");
  note(fmt::format("{}.{}: this keyword is not known", path(schema), key.substr(0, 80)));
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

// What says "nothing of this": all values, none, or those of some types. False: something else.
bool SchemaDocument::read_not(const Json* schema, const Json& value, Shape& shape) const {
  if (value == false) return true;
  if (value == true || value == Json::object()) return shape.never = true;
  if (!value.is_object() || value.size() != 1 || !value.contains("type")) return false;
  const TypeSet types = read_types(schema, value["type"]);
  if ((types & (kNumber | kInteger)) == kInteger) return false;  // numbers that are no integers
  shape.types &= static_cast<TypeSet>(~types);
  return true;
}

bool SchemaDocument::read_values(const Json* schema, const std::string& key, const Json& value,
                                 Shape& shape) {
  if (key == "type") {
    TypeSet types = read_types(schema, value);
    if (schema->value("nullable", Json(false)) == true) types |= kNull;
    shape.types &= types;
    return true;
  }
  if (key == "const" || key == "enum") {
    if (key == "enum" && (!value.is_array() || value.empty()))
      refuse(schema, key, "expected a list of values");
    std::vector<const Json*> values;
    budget_.spend(static_cast<int64_t>(value.size()), static_cast<int64_t>(value.size() * sizeof(Json*)));
    if (key == "enum")
      for (const Json& one : value) values.push_back(&one);
    else
      values.push_back(&value);
    if (!shape.values) {
      shape.values = std::move(values);
    } else {  // members in another order are the same object
      std::unordered_set<std::string> texts;
      for (const Json* one : values) texts.insert(canonical(*one));
      budget_.spend(static_cast<int64_t>(4 * (values.size() + shape.values->size())),
                    static_cast<int64_t>(100 * values.size()));
      std::erase_if(*shape.values, [&](const Json* one) { return !texts.contains(canonical(*one)); });
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
    shape.required.reserve(shape.required.size() + value.size());  // names are looked at where they lie
    std::unordered_set<std::string_view> known(shape.required.begin(), shape.required.end());
    budget_.spend(static_cast<int64_t>(known.size() + value.size()),
                  static_cast<int64_t>(value.size() * 100));
    for (const Json& name : value) {
      if (!name.is_string()) refuse(schema, key, "expected a list of names");
      const auto& text = name.get_ref<const std::string&>();
      if (known.insert(text).second) shape.required.push_back(text);
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
  if (key != "uniqueItems") return false;
  if (!value.is_boolean()) refuse(schema, key, "expected true or false");
  if (value == true) shape.unique = schema;
  return true;
}

bool SchemaDocument::read_bounds(const Json* schema, const std::string& key, const Json& value,
                                 Shape& shape) {
  const bool lower = key == "minimum" || key == "exclusiveMinimum";
  if (lower || key == "maximum" || key == "exclusiveMaximum") {
    if (value.is_boolean() && key.starts_with("exclusive"))
      return true;  // draft 4: says how minimum is meant
    if (!value.is_number()) refuse(schema, key, "expected a number");
    const bool exclusive =
        key.starts_with("exclusive") ||
        schema->value(lower ? "exclusiveMinimum" : "exclusiveMaximum", Json(false)) == Json(true);
    (lower ? shape.lower : shape.upper).push_back({value.dump(), exclusive});
    return true;
  }
  if (key != "multipleOf") return false;
  if (!value.is_number()) refuse(schema, key, "expected a number");
  shape.factors.push_back(value.dump());
  return true;
}

// Schemas of parts are read when their parts are.
bool SchemaDocument::read_parts(const Json* schema, const std::string& key, const Json& value,
                                Shape& shape) const {
  if (key == "properties" || key == "patternProperties") {
    if (!value.is_object()) refuse(schema, key, "expected an object of schemas");
    return true;
  }
  if (key == "prefixItems") {
    if (!value.is_array()) refuse(schema, key, "expected a list of schemas");
    return true;
  }
  if (key == "propertyNames") {
    if (!value.is_object() && !value.is_boolean()) refuse(schema, key, "expected a schema");
    shape.names.push_back(schema);
    return true;
  }
  if (key == "unevaluatedProperties") return value == false && !schema->contains("additionalProperties");
  return key == "additionalProperties" || key == "items" || key == "additionalItems";
}

// What "#/a/b" points to.
const Json* SchemaDocument::target(const Json* schema, const std::string& reference) {
  const auto [known, is_new] = references_.try_emplace(reference, nullptr);
  if (!is_new && known->second != nullptr) return known->second;
  budget_.spend(100, 200);
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string base = reference.substr(0, hash), fragment = reference.substr(hash);
  const Json* found = nullptr;
  if (const auto whole = named_.find(reference); whole != named_.end()) {
    found = whole->second;
  } else if (base.empty() || named_.contains(base)) {
    const Json* from = base.empty() ? &root_ : named_.at(base);
    if (const auto anchor = named_.find(fragment); anchor != named_.end())
      found = anchor->second;
    else
      found = fragment.size() <= 1 ? from : at_pointer(*from, fragment.substr(1));
  } else {  // relative to where the document says it is
    for (const auto& [name, where] : named_)
      if (name.ends_with("/" + reference)) found = where;
    if (found == nullptr)
      refuse(schema, "$ref", "only references into the schema itself (#...) are supported");
  }
  if (found == nullptr) refuse(schema, "$ref", "points to nothing: " + reference.substr(0, 80));
  paths_.try_emplace(
      found, "$" + (fragment.size() > 400 ? "..." : fragment.substr(std::min<size_t>(1, fragment.size()))));
  return known->second = found;
}

// What "/a/b" points to; null: nothing.
const Json* SchemaDocument::at_pointer(const Json& from, const std::string& coded) const {
  std::string pointer;
  for (size_t i = 0; i < coded.size(); ++i) {
    const std::string digits = coded[i] == '%' ? coded.substr(i + 1, 2) : std::string();
    const bool is_coded =
        digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    pointer += is_coded ? static_cast<char>(std::stoi(digits, nullptr, 16)) : coded[i];
    if (is_coded) i += 2;
  }
  if (pointer.size() > 2000) return nullptr;
  try {
    const Json::json_pointer at(pointer);
    if (!from.contains(at)) return nullptr;
    const Json& found = from.at(at);
    budget_.spend(static_cast<int64_t>(from.size()));  // members are looked for one by one
    return &found;
  } catch (const Json::exception&) {  // no pointer, or one into something that is no container
    return nullptr;
  }
}

TypeSet types_of(const Shape& shape) {
  if (shape.never) return 0;
  if (!shape.values) return shape.types;
  TypeSet types = 0;
  for (const Json* value : *shape.values) types |= type_of_value(*value);
  return types & shape.types;
}

}  // namespace sluice::text::grammar
