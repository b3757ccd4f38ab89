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

#include "text/grammar/budget.h"
#include "text/tool_types.h"

namespace sluice::text::grammar {

using Json = nlohmann::ordered_json;

/// Keywords whose alternatives have been told apart.
enum Decided : uint8_t { kAnyOf = 1, kOneOf = 2 };

/// A schema that holds for a value; of what is `decided` it says no more.
struct Item {
  const Json* schema;
  uint8_t decided = 0;
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
  std::optional<std::vector<const Json*>> values;  ///< of enum and const
  uint64_t least_characters = 0, most_characters = UINT64_MAX;
  std::vector<const Json*> patterns, formats;  ///< strings
  std::vector<Bound> lower, upper;
  std::vector<std::string> factors;  ///< as JSON writes them
  uint64_t least_items = 0, most_items = UINT64_MAX;
  uint64_t least_properties = 0, most_properties = UINT64_MAX;
  std::vector<std::string> required;  ///< each once
  const Json* unique = nullptr;       ///< who says uniqueItems
  std::vector<const Json*> names;     ///< schemas with propertyNames
};

/// What becomes of a keyword that cannot be kept.
enum class Unkept : uint8_t {
  Error,          ///< an error
  UniqueMayLack,  ///< an error, but for uniqueItems, which is left unbound
  Unbound,        ///< it is left unbound
};

struct SchemaRule {
  Unkept unkept = Unkept::Error;
  std::vector<std::string>* notes = nullptr;  ///< takes lines about what is left unbound; null: nobody cares
};

/// A document of schemas and the names of its places.
class SchemaDocument {
 public:
  SchemaDocument(const Json& root, Budget& budget, SchemaRule rule);

  /// Puts together what holds. Throws Error for keywords that are not supported or malformed.
  Shape shape(const Items& items);
  /// "$.properties.a"
  std::string path(const Json* schema) const;
  /// Remembers where a schema stands; returns it.
  const Json* at(const Json& schema, const Json* parent, const std::string& step);
  [[noreturn]] void refuse(const Json* schema, const std::string& keyword, const std::string& why) const;
  /// For a keyword that cannot be kept: refuses it, or notes that it is left unbound.
  void leave(const Json* schema, const std::string& keyword, const std::string& why) const;
  void note(const std::string& line) const;
  const SchemaRule& rule() const { return rule_; }

 private:
  void find_names();
  void read(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  void add(const Json* at_hand, Shape& shape);
  void read_keyword(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_not(const Json* schema, const Json& value, Shape& shape) const;
  bool read_values(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_limits(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_bounds(const Json* schema, const std::string& key, const Json& value, Shape& shape);
  bool read_parts(const Json* schema, const std::string& key, const Json& value, Shape& shape) const;
  TypeSet read_types(const Json* schema, const Json& value) const;
  uint64_t count(const Json* schema, const std::string& key, const Json& value) const;
  const Json* target(const Json* schema, const std::string& reference);
  const Json* at_pointer(const Json& from, const std::string& pointer) const;

  const Json& root_;
  Budget& budget_;
  SchemaRule rule_;
  std::unordered_map<std::string, const Json*> named_;       ///< by $id, and by "#" and $anchor
  std::unordered_map<std::string, const Json*> references_;  ///< what has been looked up
  std::vector<const Json*> open_;                            ///< schemas that are being read
  std::map<const Json*, uint8_t> decided_;
  std::unordered_map<const Json*, std::string> paths_;
};

/// A text that equal values share, whatever the order of members and the way in which numbers are written.
std::string canonical(const Json& value);

/// The type of a value; integers are kInteger alone.
TypeSet type_of_value(const Json& value);

/// The types that may really occur.
TypeSet types_of(const Shape& shape);

}  // namespace sluice::text::grammar
