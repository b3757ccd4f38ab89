// The grammar of expressions, one function a level of precedence, weakest first.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/symbols.h"
#include "text/jinja/token_stream.h"

namespace sluice::text::jinja {

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, Symbols& symbols) : tokens_(tokens), symbols_(symbols) {}

  /// With `condition`, `x if y else z` belongs to the expression.
  ExprPtr expression(bool condition = true);
  /// An expression, or a tuple without parentheses. Ends before the name `end`, if one is given.
  ExprPtr tuple(bool condition = true, std::string_view end = {}, bool in_parentheses = false);
  /// |filter|filter... around `value`; with `inline_first` the first one has no bar.
  ExprPtr filters(ExprPtr value, bool inline_first = false);
  /// a, (b, c) or, where `allow_attribute` says so, namespace.attribute.
  Target target(bool allow_attribute, std::string_view end = {});

  /// Notes that `child` stands below `node`. Throws Failure when the tree gets too high.
  void adopt(Node& node, const Node& child) const;

  /// One more level of nesting, as long as it lives. Throws Failure at the limit.
  class Nest {
   public:
    explicit Nest(ExpressionParser& parser);
    ~Nest() { --parser_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    ExpressionParser& parser_;
  };

  /// The macros around the present place: each notes which of its special variables are used in it.
  std::vector<MacroNode*>& macros() { return macros_; }

 private:
  static constexpr int kMaxHeight = 400;
  static constexpr int kMaxDepth = 100;

  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr name();
  ExprPtr string();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr value);
  ExprPtr filters_and_tests(ExprPtr value);
  ExprPtr test(ExprPtr value);
  ExprPtr attribute(ExprPtr object);
  ExprPtr subscript(ExprPtr object);
  ExprPtr call(ExprPtr callee);
  void arguments(Node& node, ArgumentNodes& out);
  void argument(Node& node, ArgumentNodes& out);
  bool at_tuple_end(std::string_view end) const;
  bool compare_operator(CompareOp& op);
  Target target_item(std::string_view end);
  Symbol assignable_name();
  ExprPtr binary(BinaryOp op, int line, ExprPtr left, ExprPtr right);
  ExprPtr logic(bool is_and, int line, ExprPtr left, ExprPtr right);

  TokenStream& tokens_;
  Symbols& symbols_;
  int depth_ = 0;
  std::vector<MacroNode*> macros_;
};

}  // namespace sluice::text::jinja
