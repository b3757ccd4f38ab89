// What may stand on the left of an assignment, or between `for` and `in`.
#include <algorithm>
#include <iterator>

#include "text/jinja/expression_parser.h"

namespace sluice::text::jinja {

namespace {

/// Names that cannot be assigned to.
bool is_constant_name(std::string_view name) {
  static constexpr std::string_view kNames[] = {"true", "True", "false", "False", "none", "None"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

Symbol ExpressionParser::assignable_name() {
  const Token& token = tokens_.expect(TokenKind::Name, "a name to assign to");
  if (is_constant_name(token.text)) throw Failure{"can't assign to '" + token.text + "'", token.line};
  return symbols_.intern(token.text);
}

Target ExpressionParser::target_item(std::string_view end) {
  const Nest nest(*this);
  if (tokens_.skip_operator("(")) {
    Target inner = target(false, end);
    tokens_.expect_operator(")");
    return inner;
  }
  Target one;
  one.symbol = assignable_name();
  return one;
}

Target ExpressionParser::target(bool allow_attribute, std::string_view end) {
  if (allow_attribute && tokens_.ahead_is_operator(".")) {
    Target one;
    one.symbol = assignable_name();
    tokens_.next();
    one.attribute = tokens_.expect(TokenKind::Name, "the name of an attribute").text;
    return one;
  }
  Target first = target_item(end);
  if (!tokens_.is_operator(",")) return first;
  Target all;
  all.is_tuple = true;
  all.items.push_back(std::move(first));
  while (tokens_.skip_operator(",")) {
    if (at_tuple_end(end) || tokens_.is_operator("=")) break;
    all.items.push_back(target_item(end));
  }
  return all;
}

}  // namespace sluice::text::jinja
