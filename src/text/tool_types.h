// What a request's tools say about the types of their arguments, and how an argument that a model wrote as
// bare text becomes JSON by it. Knows JSON Schema as far as types go; tags are not its business.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::text {

/// A set of JSON types, one bit each.
using TypeSet = uint8_t;
enum JsonType : TypeSet {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kOtherType = 128,  ///< a name that JSON Schema does not have: no value is of that type
};

/// The tools of a request and the types of their parameters.
class ToolTypes {
 public:
  /// Takes tools in OpenAI's form ({"type": "function", "function": {"name", "parameters"}}) or bare
  /// ({"name", "parameters"}); null is the same as []. Of tools with equal names the first counts. A schema
  /// that makes no sense says nothing. Throws Error when the list is no array or a tool has no name.
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  bool declares(std::string_view tool) const { return tools_.find(tool) != tools_.end(); }
  /// The types that an argument may have; 0 when nothing is known about it.
  TypeSet types(std::string_view tool, std::string_view key) const;

 private:
  using Parameters = std::map<std::string, TypeSet, std::less<>>;
  std::map<std::string, Parameters, std::less<>> tools_;
};

/// The argument as JSON text. Text that may be a string is one, to the byte (but `null` is null where that is
/// allowed too); other types are read as JSON, and what cannot be read as one of them is a string again.
std::string typed_value(std::string_view text, TypeSet types);

}  // namespace sluice::text
