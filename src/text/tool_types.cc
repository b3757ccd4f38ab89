#include "text/tool_types.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

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

// Both hold; where they exclude each other, `first`.
TypeSet both(TypeSet first, TypeSet second) {
  if (first == 0) return second;
  return (first & second) != 0 ? first & second : first;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Whether the pattern is found in the text; one that makes no sense or takes long is not.
bool matches(const std::string& pattern, std::string_view text) {
  constexpr size_t kLongestPattern = 1000;
  constexpr uint32_t kMostSteps = 10000;
  if (pattern.size() > kLongestPattern) return false;
  int error = 0;
  size_t where = 0;
  const std::unique_ptr<pcre2_code, FreeCode> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                                                 pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                                                 &error, &where, nullptr));
  if (!code) return false;
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMostSteps);
  return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(),
                     context.get()) >= 0;
}

// What a tool's parameters say about one argument. References may go in circles, and a schema may be reached
// in many ways: each is asked once, and while it is, says nothing.
class ArgumentTypes {
 public:
  ArgumentTypes(const Json& parameters, std::string_view key) : parameters_(parameters), key_(key) {}

  // Of the argument, by a schema of the object that it stands in.
  TypeSet of_object(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kJsonDepth || !objects_.insert(&schema).second) return 0;
    TypeSet types = 0;
    if (const Json* target = referred(schema)) types = of_object(*target, depth + 1);
    types = both(types, of_members(schema));
    const auto find = [&](const Json& member) { return of_object(member, depth + 1); };
    return both(types, of_parts(schema, find));
  }

 private:
  // Of the argument, by the keywords that speak of an object's members.
  TypeSet of_members(const Json& schema) {
    TypeSet types = 0;
    bool is_named = false;
    if (const auto properties = schema.find("properties");
        properties != schema.end() && properties->is_object()) {
      const auto found = properties->find(std::string(key_));
      is_named = found != properties->end();
      if (is_named) types = of_value(*found);
    }
    if (const auto patterns = schema.find("patternProperties");
        patterns != schema.end() && patterns->is_object()) {
      for (const auto& [pattern, member] : patterns->items()) {
        if (!matches(pattern, key_)) continue;
        is_named = true;
        types = both(types, of_value(member));
      }
    }
    for (const char* word : {"additionalProperties", "unevaluatedProperties"}) {
      const auto others = schema.find(word);
      if (!is_named && others != schema.end()) types = both(types, of_value(*others));
    }
    return types;
  }

  // Of a value, by its schema.
  TypeSet of_value(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kJsonDepth) return 0;
    const auto [known, is_new] = values_.emplace(&schema, TypeSet{0});
    if (!is_new) return known->second;
    TypeSet types = 0;
    if (const Json* target = referred(schema)) types = of_value(*target, depth + 1);
    types = both(types, said(schema));
    types = both(types, of_parts(schema, [&](const Json& member) { return of_value(member, depth + 1); }));
    if (types == 0) types = implied(schema);
    const auto nullable = schema.find("nullable");
    if (types != 0 && nullable != schema.end() && *nullable == true) types |= kNull;
    values_[&schema] = types;
    return types;
  }

  // By `type`, `enum` and `const`.
  static TypeSet said(const Json& schema) {
    TypeSet types = 0;
    if (const auto type = schema.find("type"); type != schema.end()) {
      if (type->is_string()) types = type_named(type->get_ref<const std::string&>());
      if (type->is_array())
        for (const Json& name : *type) types |= name.is_string() ? type_named(name.get<std::string>()) : 0;
    }
    TypeSet values = 0;
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array())
      for (const Json& value : *list) values |= types_of(value);
    types = both(types, values);
    if (const auto value = schema.find("const"); value != schema.end()) types = both(types, types_of(*value));
    return types;
  }

  // By the schemas that others are put together from.
  template <typename Find>
  static TypeSet of_parts(const Json& schema, const Find& find) {
    TypeSet types = 0;
    for (const char* word : {"anyOf", "oneOf"}) {
      const auto members = schema.find(word);
      if (members == schema.end() || !members->is_array()) continue;
      TypeSet any = 0;
      for (const Json& member : *members) any |= find(member);
      types = both(types, any);
    }
    if (const auto members = schema.find("allOf"); members != schema.end() && members->is_array())
      for (const Json& member : *members) types = both(types, find(member));
    TypeSet branches = 0;
    for (const char* word : {"then", "else"})
      if (const auto branch = schema.find(word); branch != schema.end()) branches |= find(*branch);
    if (const auto dependent = schema.find("dependentSchemas");
        dependent != schema.end() && dependent->is_object())
      for (const Json& branch : *dependent) branches |= find(branch);
    return both(types, branches);
  }

  // By keywords that speak of one type alone.
  static TypeSet implied(const Json& schema) {
    constexpr std::pair<const char*, TypeSet> kOfOneType[] = {
        {"properties", kObject},        {"required", kObject},      {"additionalProperties", kObject},
        {"patternProperties", kObject}, {"propertyNames", kObject}, {"minProperties", kObject},
        {"maxProperties", kObject},     {"items", kArray},          {"prefixItems", kArray},
        {"contains", kArray},           {"minItems", kArray},       {"maxItems", kArray},
        {"uniqueItems", kArray},        {"minLength", kString},     {"maxLength", kString},
        {"pattern", kString},           {"format", kString},        {"contentEncoding", kString},
        {"minimum", kNumber},           {"maximum", kNumber},       {"exclusiveMinimum", kNumber},
        {"exclusiveMaximum", kNumber},  {"multipleOf", kNumber}};
    TypeSet types = 0;
    for (const auto& [word, type] : kOfOneType)
      if (schema.contains(word)) types |= type;
    return types;
  }

  // What the schema's "$ref": "#/a/b" points to among the parameters; null when it is not there.
  const Json* referred(const Json& schema) const {
    const auto ref = schema.find("$ref");
    if (ref == schema.end() || !ref->is_string()) return nullptr;
    const auto& reference = ref->get_ref<const std::string&>();
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
  std::string_view key_;
  std::unordered_set<const Json*> objects_;
  std::unordered_map<const Json*, TypeSet> values_;
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
    const auto parameters = tool->find("parameters");
    tools_.emplace((*tool)["name"].get<std::string>(), parameters == tool->end() ? Json() : *parameters);
  }
}

TypeSet ToolTypes::types(std::string_view tool, std::string_view key) const {
  const auto parameters = tools_.find(tool);
  return parameters == tools_.end() ? TypeSet{0}
                                    : ArgumentTypes(parameters->second, key).of_object(parameters->second);
}

std::string typed_value(std::string_view text, TypeSet types) {
  std::string_view value = trimmed(text);
  if (types == 0 || (types & kString) != 0) {
    if ((types & kNull) != 0 && value == "null") return "null";
    const TypeSet holders = types & (kArray | kObject);
    const bool holds = holders != 0 && is_json(value) && (types_of_text(value) & holders) != 0;
    return holds ? json_compact(value) : json_quote(text);
  }
  constexpr std::pair<std::string_view, std::string_view> kPython[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, json] : kPython)
    if (value == python) value = json;
  if (is_json(value) && (types_of_text(value) & (types | kNull)) != 0) return json_compact(value);
  return json_quote(text);
}

bool StringText::is_string(std::string_view text) {
  constexpr std::string_view kWord = "null";
  if (types_ != 0 && (types_ & kString) == 0) return false;
  if ((types_ & (kNull | kArray | kObject)) == 0) return true;
  for (; read_ < text.size() && !certain_ && !undecidable_; ++read_) {
    const char c = text[read_];
    if (null_letters_ == 0 || null_letters_ == kWord.size()) {
      if (is_space(c)) continue;
    }
    const bool goes_on = null_letters_ < kWord.size() && c == kWord[null_letters_] && (types_ & kNull) != 0;
    const bool first = null_letters_ == 0;
    undecidable_ = first && ((c == '[' && (types_ & kArray) != 0) || (c == '{' && (types_ & kObject) != 0));
    certain_ = !goes_on && !undecidable_;
    if (goes_on) ++null_letters_;
  }
  return certain_;
}

}  // namespace sluice::text
