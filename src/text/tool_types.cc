// Types are found once for every parameter, when the request arrives.
#include "text/tool_types.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

TypeSet type_named(std::string_view name) {
  constexpr std::pair<std::string_view, JsonType> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  for (const auto& [known, type] : kNames)
    if (name == known) return type;
  return kOtherType;
}

// The types of a number: JSON Schema takes 2.0 for an integer too.
TypeSet number_types(double value) {
  return std::isfinite(value) && std::floor(value) == value ? kInteger | kNumber : kNumber;
}

TypeSet types_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return kNull;
    case Json::value_t::boolean: return kBoolean;
    case Json::value_t::string: return kString;
    case Json::value_t::array: return kArray;
    case Json::value_t::object: return kObject;
    default: return number_types(value.get<double>());
  }
}

// The types of a JSON value, which its first byte tells but for numbers.
TypeSet types_of_text(std::string_view json) {
  switch (json.front()) {
    case 'n': return kNull;
    case 't':
    case 'f': return kBoolean;
    case '"': return kString;
    case '[': return kArray;
    case '{': return kObject;
    default: return number_types(std::strtod(std::string(json).c_str(), nullptr));
  }
}

// The types that one schema allows. References may go in circles; what is being found already adds nothing.
class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& parameters) : parameters_(parameters) {}

  TypeSet find(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kJsonDepth) return 0;
    const auto [known, is_new] = found_.emplace(&schema, TypeSet{0});
    if (!is_new) return known->second;
    TypeSet types = said(schema, depth);
    const auto nullable = schema.find("nullable");
    if (types != 0 && nullable != schema.end() && *nullable == true) types |= kNull;
    found_[&schema] = types;
    return types;
  }

 private:
  TypeSet said(const Json& schema, int depth) {
    if (const auto ref = schema.find("$ref"); ref != schema.end() && ref->is_string()) {
      const Json* target = referred(ref->get_ref<const std::string&>());
      return target == nullptr ? 0 : find(*target, depth + 1);
    }
    TypeSet types = 0;
    if (const auto type = schema.find("type"); type != schema.end() && type->is_string())
      return type_named(type->get_ref<const std::string&>());
    else if (type != schema.end() && type->is_array()) {
      for (const Json& name : *type) types |= name.is_string() ? type_named(name.get<std::string>()) : 0;
      return types;
    }
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      for (const Json& value : *values) types |= types_of(value);
      return types;
    }
    if (const auto value = schema.find("const"); value != schema.end()) return types_of(*value);
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      const auto members = schema.find(word);
      if (members == schema.end() || !members->is_array()) continue;
      for (const Json& member : *members) types |= find(member, depth + 1);
    }
    return types;
  }

  // What "#/a/b" points to among the parameters; null when it is not there.
  const Json* referred(const std::string& reference) const {
    if (reference.empty() || reference[0] != '#') return nullptr;
    try {
      const Json::json_pointer pointer(percent_decoded(reference.substr(1)));
      return parameters_.contains(pointer) ? &parameters_.at(pointer) : nullptr;
    } catch (const Json::exception&) {  // no pointer, or one into something that is no container
      return nullptr;
    }
  }

  static std::string percent_decoded(const std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      const std::string digits = text[at] == '%' ? text.substr(at + 1, 2) : std::string();
      const bool coded =
          digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
      out += coded ? static_cast<char>(std::strtol(digits.c_str(), nullptr, 16)) : text[at];
      if (coded) at += 2;
    }
    return out;
  }

  const Json& parameters_;
  std::unordered_map<const Json*, TypeSet> found_;
};

}  // namespace

ToolTypes::ToolTypes(const Json& tools) {
  if (tools.is_null()) return;
  if (!tools.is_array()) fail("tools: expected an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json* tool = &tools[i];
    if (tool->is_object() && tool->contains("function")) tool = &(*tool)["function"];
    const bool named = tool->is_object() && tool->contains("name") && (*tool)["name"].is_string();
    if (!named)
      fail("tools[{}]: expected an object {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}", i);
    const auto [at, is_new] = tools_.emplace((*tool)["name"].get<std::string>(), Parameters());
    const auto parameters = tool->find("parameters");
    if (!is_new || parameters == tool->end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items())
      at->second.emplace(key, SchemaTypes(*parameters).find(schema));
  }
}

TypeSet ToolTypes::types(std::string_view tool, std::string_view key) const {
  const auto parameters = tools_.find(tool);
  if (parameters == tools_.end()) return 0;
  const auto found = parameters->second.find(key);
  return found == parameters->second.end() ? 0 : found->second;
}

std::string typed_value(std::string_view text, TypeSet types) {
  std::string_view value = trimmed(text);
  if (types == 0 || (types & kString) != 0) {
    return (types & kNull) != 0 && value == "null" ? "null" : json_quote(text);
  }
  constexpr std::pair<std::string_view, std::string_view> kPython[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, json] : kPython)
    if (value == python) value = json;
  if (is_json(value) && (types_of_text(value) & (types | kNull)) != 0) return json_compact(value);
  return json_quote(text);
}

}  // namespace sluice::text
