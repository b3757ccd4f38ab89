// What a request's tools say about the types of their arguments, and how an argument that a model wrote as
// bare text becomes JSON by it. Knows JSON Schema as far as types go, and takes any schema: a hint is enough
// here, so what a schema only implies counts, and what makes no sense says nothing. Tags are not its
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
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
  /// The types that an argument may have; 0 when nothing is known about it. Its schemas are those that
  /// `properties`, `patternProperties` or, where neither has it, `additionalProperties` of the tool's
  /// parameters have for it, and of all that these refer to or put together.
  TypeSet types(std::string_view tool, std::string_view key) const;

 private:
  std::map<std::string, nlohmann::ordered_json, std::less<>> tools_;  ///< their parameters
};

/// The argument as JSON text. Text that may be a string is one, to the byte (but `null` is null where that is
/// allowed too, and what reads as a list or object is one); other types are read as JSON, and what cannot be
/// read as one of them is a string again.
std::string typed_value(std::string_view text, TypeSet types);

/// Says as soon as it is certain, while the text of an argument arrives, that typed_value makes a string of
/// it to the byte, whatever follows.
class StringText {
 public:
  explicit StringText(TypeSet types) : types_(types) {}
  /// `text` is all so far.
  bool is_string(std::string_view text);

 private:
  TypeSet types_;
  size_t read_ = 0, null_letters_ = 0;
  bool certain_ = false, undecidable_ = false;
};

}  // namespace sluice::text
