// JSON schemas to rules. docs/structured_output.md says which keywords there are and where documents are
// fewer than the schema allows (never more): properties come in the schema's order, and so on.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/json_rules.h"
#include "text/grammar/schema_shape.h"

namespace sluice::text::grammar {

class SchemaCompiler {
 public:
  /// `schema` and `rules` must outlive this, and so must what the rule's notes are for.
  SchemaCompiler(const Json& schema, JsonRules& rules, SchemaRule rule)
      : root_(schema), document_(schema, rules.budget(), rule), rules_(rules) {}

  /// The rule of JSON values of the whole schema. Throws Error as json_schema_constraint() does.
  uint32_t rule() { return rule_of({{&root_}}); }

  struct Property {
    std::string key;
    Items items;  ///< what holds for its value
    bool required;
  };
  /// The named properties of the objects that the schema allows; for a schema of one object. Throws Error.
  std::vector<Property> properties();
  /// The rule of values with these schemas.
  uint32_t rule_of(Items items);
  /// The rule of the strings that these schemas allow, written plainly; also "null"
  /// where null is allowed. None: there are no such texts.
  std::optional<uint32_t> plain_rule(const Items& items);

 private:
  uint32_t define(uint32_t rule, const Items& items);
  uint32_t choice_rule(uint32_t rule, const Items& items, const Choice& choice);
  std::vector<Items> alternatives(const Items& items, const Choice& choice);
  void check_exclusive(const Choice& choice, const std::vector<Items>& alternatives);
  bool disjoint(const Items& left, const Items& right, int depth);
  bool told_apart(const std::vector<const Shape*>& shapes, TypeSet type);
  bool told_apart_by_property(const std::vector<const Shape*>& shapes);
  bool append_plain(Nfa& nfa, const Items& items, uint32_t from, uint32_t to);
  std::vector<const Json*> fitting_values(const Shape& shape);
  struct Text {
    std::optional<Dfa> characters;  ///< none: any
    uint64_t least, most;           ///< how many
  };
  Text text_of(const Shape& shape);
  uint32_t string_rule(const Shape& shape);
  /// The strings among the values that these schemas allow; none: any string.
  std::optional<Dfa> strings(const Items& items);
  std::optional<Dfa> names_of(const Shape& shape);
  Dfa number(const Shape& shape);
  void define_array(uint32_t rule, const Shape& shape);
  bool define_set(uint32_t rule, const Shape& shape, const Items& items);
  void define_object(uint32_t rule, const Shape& shape);
  std::vector<Property> properties_of(const Shape& shape);
  std::vector<JsonRules::Further> further_of(const Shape& shape, const std::vector<Property>& properties);
  /// A schema to name in a message; `true` says nothing and is not among the shape's.
  const Json* first(const Shape& shape) const {
    return shape.schemas.empty() ? &root_ : shape.schemas.front();
  }
  bool is_closed(const Shape& shape) const;
  void limit_properties(const Shape& shape, const std::vector<Property>& properties,
                        JsonRules::Object& object);
  /// Null: left unbound.
  ExpressionPtr pattern(const Json* schema, const std::string& keyword, const std::string& text);

  const Json& root_;
  SchemaDocument document_;
  JsonRules& rules_;
  std::map<Items, uint32_t> known_;
  int depth_ = 0;
};

}  // namespace sluice::text::grammar
