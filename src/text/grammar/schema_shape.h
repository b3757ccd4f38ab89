// What the schemas that hold for one value say together: references followed, allOf taken apart, keywords
// checked. Knows JSON Schema; rules and automata are not its business.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tool_types.h"

namespace sluice::text::grammar {

using Json = nlohmann::ordered_json;

/// A schema that holds for a value; with `decided` its anyOf and oneOf are left aside.
struct Item {
  const Json* schema;
  bool decided = false;
  auto operator<=>(const Item&) const = default;
};
/// All schemas that hold for a value.
using Items = std::vector<Item>;

struct Choice {
  const Json* owner;  ///< whose keyword it is
  const Json* alternatives;
  bool exclusive;  ///< oneOf
};

struct Shape {
  static constexpr TypeSet kAll = kNull | kBoolean | kInteger | kNumber | kString | kArray | kObject;
  struct Bound {
    std::string decimal;
    bool exclusive;
  };

  bool never = false;
  TypeSet types = kAll;
  std::vector<const Json*> schemas;  ///< every object among them, references followed
  std::vector<Choice> choices;
  std::optional<std::vector<Json>> values;  ///< of enum and const
  uint64_t least_characters = 0, most_characters = UINT64_MAX;
  std::vector<const Json*> patterns, formats;  ///< strings
  std::vector<Bound> lower, upper;
  std::vector<int> factors;
  uint64_t least_items = 0, most_items = UINT64_MAX;
  uint64_t least_properties = 0, most_properties = UINT64_MAX;
  std::vector<std::string> required;
};

/// A document of schemas and the names of its places.
class SchemaDocument {
 public:
  explicit SchemaDocument(const Json& root);

  /// Puts together what holds. Throws Error for keywords that are unknown, not supported or malformed.
  Shape shape(const Items& items);
  /// "$.properties.a"
  std::string path(const Json* schema) const;
  /// Remembers where a schema stands; returns it.
  const Json* at(const Json& schema, const Json* parent, const std::string& step);
  [[noreturn]] void refuse(const Json* schema, const std::string& keyword, const std::string& why) const;

 private:
  void add(const Json* at_hand, Shape& shape);
  void read_keyword(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_values(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_limits(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_bounds(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_parts(const Json* schema, const std::string& key, const Json& value) const;
  TypeSet read_types(const Json* schema, const Json& value) const;
  uint64_t count(const Json* schema, const std::string& key, const Json& value) const;
  const Json* target(const Json* schema, const std::string& reference);

  const Json& root_;
  std::vector<const Json*> open_;  ///< schemas that are being read
  std::set<const Json*> decided_;  ///< whose choices are left aside
  std::unordered_map<const Json*, std::string> paths_;
};

/// The type of a value; integers are kInteger alone.
TypeSet type_of_value(const Json& value);

/// The types that may really occur.
TypeSet types_of(const Shape& shape);

}  // namespace sluice::text::grammar
