// The grammar of expressions.
#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <iterator>

namespace sluice::text::jinja {

namespace {

ExprPtr literal(int line, Value value) {
  auto node = make<LiteralExpr>(line);
  node->value = std::move(value);
  return node;
}

Value text_constant(std::string text) {
  return Value(std::make_shared<const String>(std::move(text), nullptr));
}

}  // namespace

ExpressionParser::Nest::Nest(ExpressionParser& parser) : parser_(parser) {
  if (parser.depth_ >= kMaxDepth) parser.tokens_.fail("the template is nested too deeply");
  ++parser_.depth_;
}

void ExpressionParser::adopt(Node& node, const Node& child) const {
  node.height = std::max(node.height, child.height + 1);
  if (node.height > kMaxHeight) throw Failure{"an expression is too long or nested too deeply", node.line};
}

ExprPtr ExpressionParser::expression(bool condition) {
  const Nest nest(*this);
  int line = tokens_.line();
  ExprPtr value = disjunction();
  while (condition && tokens_.skip_name("if")) {
    auto node = make<ConditionalExpr>(line);
    node->yes = std::move(value);
    node->condition = disjunction();
    if (tokens_.skip_name("else")) node->no = expression();
    for (const ExprPtr* child : {&node->yes, &node->condition, &node->no}) {
      if (*child) adopt(*node, **child);
    }
    value = std::move(node);
    line = tokens_.line();
  }
  return value;
}

ExprPtr ExpressionParser::logic(bool is_and, int line, ExprPtr left, ExprPtr right) {
  auto node = make<LogicExpr>(line);
  node->is_and = is_and;
  adopt(*node, *left);
  adopt(*node, *right);
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

ExprPtr ExpressionParser::binary(BinaryOp op, int line, ExprPtr left, ExprPtr right) {
  auto node = make<BinaryExpr>(line);
  node->op = op;
  adopt(*node, *left);
  adopt(*node, *right);
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

ExprPtr ExpressionParser::disjunction() {
  ExprPtr left = conjunction();
  while (tokens_.is_name("or")) {
    const int line = tokens_.next().line;
    left = logic(false, line, std::move(left), conjunction());
  }
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr left = negation();
  while (tokens_.is_name("and")) {
    const int line = tokens_.next().line;
    left = logic(true, line, std::move(left), negation());
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  if (!tokens_.is_name("not")) return comparison();
  const Nest nest(*this);
  auto node = make<UnaryExpr>(tokens_.next().line);
  node->op = UnaryExpr::Not;
  node->operand = negation();
  adopt(*node, *node->operand);
  return node;
}

/// Takes a comparison operator, if one comes next.
bool ExpressionParser::compare_operator(CompareOp& op) {
  static constexpr std::pair<std::string_view, CompareOp> kOperators[] = {
      {"==", CompareOp::Equal},     {"!=", CompareOp::NotEqual}, {"<", CompareOp::Less},
      {"<=", CompareOp::LessEqual}, {">", CompareOp::Greater},   {">=", CompareOp::GreaterEqual}};
  for (const auto& [text, value] : kOperators) {
    op = value;
    if (tokens_.skip_operator(text)) return true;
  }
  op = CompareOp::In;
  if (tokens_.skip_name("in")) return true;
  op = CompareOp::NotIn;
  if (!tokens_.is_name("not") || tokens_.ahead().kind != TokenKind::Name || tokens_.ahead().text != "in")
    return false;
  tokens_.next();
  tokens_.next();
  return true;
}

ExprPtr ExpressionParser::comparison() {
  const int line = tokens_.line();
  ExprPtr first = sum();
  CompareOp op;
  if (!compare_operator(op)) return first;
  auto node = make<CompareExpr>(line);
  adopt(*node, *first);
  node->first = std::move(first);
  do {
    node->rest.emplace_back(op, sum());
    adopt(*node, *node->rest.back().second);
  } while (compare_operator(op));
  return node;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
    const BinaryOp op = tokens_.is_operator("+") ? BinaryOp::Add : BinaryOp::Subtract;
    const int line = tokens_.next().line;
    left = binary(op, line, std::move(left), concatenation());
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const int line = tokens_.line();
  ExprPtr first = product();
  if (!tokens_.is_operator("~")) return first;
  auto node = make<ConcatExpr>(line);
  node->parts.push_back(std::move(first));
  while (tokens_.skip_operator("~")) node->parts.push_back(product());
  for (const ExprPtr& part : node->parts) adopt(*node, *part);
  return node;
}

ExprPtr ExpressionParser::product() {
  static constexpr std::pair<std::string_view, BinaryOp> kOperators[] = {{"*", BinaryOp::Multiply},
                                                                         {"/", BinaryOp::Divide},
                                                                         {"//", BinaryOp::FloorDivide},
                                                                         {"%", BinaryOp::Modulo}};
  ExprPtr left = power();
  while (true) {
    const auto* const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                           [this](const auto& op) { return tokens_.is_operator(op.first); });
    if (found == std::end(kOperators)) return left;
    const int line = tokens_.next().line;
    left = binary(found->second, line, std::move(left), power());
  }
}

/// Associates to the left, unlike Python's.
ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (tokens_.is_operator("**")) {
    const int line = tokens_.next().line;
    left = binary(BinaryOp::Power, line, std::move(left), unary(true));
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr value;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const Nest nest(*this);
    auto node = make<UnaryExpr>(tokens_.line());
    node->op = tokens_.next().text == "-" ? UnaryExpr::Minus : UnaryExpr::Plus;
    node->operand = unary(false);
    adopt(*node, *node->operand);
    value = std::move(node);
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = tokens_.current();
  switch (token.kind) {
    case TokenKind::Name: return name();
    case TokenKind::String: return string();
    case TokenKind::Integer: return literal(tokens_.next().line, Value::integer(token.integer));
    case TokenKind::Float: return literal(tokens_.next().line, Value::real(token.real));
    default: break;
  }
  if (tokens_.skip_operator("(")) {
    ExprPtr value = tuple(true, {}, true);
    tokens_.expect_operator(")");
    return value;
  }
  if (tokens_.is_operator("[")) return list();
  if (tokens_.is_operator("{")) return dict();
  tokens_.fail("unexpected " + describe(token));
}

ExprPtr ExpressionParser::name() {
  const Token& token = tokens_.next();
  const std::string& text = token.text;
  if (text == "true" || text == "True") return literal(token.line, Value::boolean(true));
  if (text == "false" || text == "False") return literal(token.line, Value::boolean(false));
  if (text == "none" || text == "None") return literal(token.line, Value::none());
  for (MacroNode* macro : macros_) {
    macro->uses_caller |= text == "caller";
    macro->uses_varargs |= text == "varargs";
    macro->uses_kwargs |= text == "kwargs";
  }
  auto node = make<NameExpr>(token.line);
  node->symbol = symbols_.intern(text);
  return node;
}

ExprPtr ExpressionParser::string() {
  const int line = tokens_.line();
  std::string text = tokens_.next().text;
  while (tokens_.is(TokenKind::String)) text += tokens_.next().text;
  return literal(line, text_constant(std::move(text)));
}

ExprPtr ExpressionParser::list() {
  auto node = make<ListExpr>(tokens_.next().line);
  while (!tokens_.is_operator("]")) {
    if (!node->items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    node->items.push_back(expression());
    adopt(*node, *node->items.back());
  }
  tokens_.expect_operator("]");
  return node;
}

ExprPtr ExpressionParser::dict() {
  auto node = make<DictExpr>(tokens_.next().line);
  while (!tokens_.is_operator("}")) {
    if (!node->entries.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    ExprPtr key = expression();
    tokens_.expect_operator(":");
    node->entries.emplace_back(std::move(key), expression());
    adopt(*node, *node->entries.back().first);
    adopt(*node, *node->entries.back().second);
  }
  tokens_.expect_operator("}");
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end) const {
  return tokens_.is(TokenKind::PrintEnd) || tokens_.is(TokenKind::BlockEnd) || tokens_.is_operator(")") ||
         (!end.empty() && tokens_.is_name(end));
}

ExprPtr ExpressionParser::tuple(bool condition, std::string_view end, bool in_parentheses) {
  const int line = tokens_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!at_tuple_end(end)) {
    items.push_back(expression(condition));
    if (!tokens_.skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses)
    tokens_.fail("expected an expression, got " + describe(tokens_.current()));
  auto node = make<ListExpr>(line);
  node->flavour = Flavour::Tuple;
  for (const ExprPtr& item : items) adopt(*node, *item);
  node->items = std::move(items);
  return node;
}

ExprPtr ExpressionParser::postfix(ExprPtr value) {
  while (true) {
    if (tokens_.is_operator("."))
      value = attribute(std::move(value));
    else if (tokens_.is_operator("["))
      value = subscript(std::move(value));
    else if (tokens_.is_operator("("))
      value = call(std::move(value));
    else
      return value;
  }
}

ExprPtr ExpressionParser::attribute(ExprPtr object) {
  const int line = tokens_.next().line;
  if (tokens_.is(TokenKind::Integer)) {  // list.0
    auto node = make<ItemExpr>(line);
    node->key = literal(line, Value::integer(tokens_.next().integer));
    adopt(*node, *object);
    node->object = std::move(object);
    return node;
  }
  auto node = make<AttributeExpr>(line);
  node->name = tokens_.expect(TokenKind::Name, "a name or a number after '.'").text;
  adopt(*node, *object);
  node->object = std::move(object);
  return node;
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
  const int line = tokens_.next().line;
  if (tokens_.is_operator("]")) tokens_.fail("expected an index");
  ExprPtr parts[3];
  size_t colons = 0;
  while (!tokens_.is_operator("]")) {
    if (colons < 2 && tokens_.skip_operator(":")) {
      ++colons;
    } else if (!parts[colons] && !tokens_.is_operator(":")) {
      parts[colons] = expression();
      if (tokens_.is_operator(",")) tokens_.fail("an index of several parts is not supported");
    } else {
      tokens_.fail("expected ']', got " + describe(tokens_.current()));
    }
  }
  tokens_.next();
  if (colons == 0) {
    auto node = make<ItemExpr>(line);
    adopt(*node, *object);
    adopt(*node, *parts[0]);
    node->object = std::move(object);
    node->key = std::move(parts[0]);
    return node;
  }
  auto node = make<SliceExpr>(line);
  adopt(*node, *object);
  for (const ExprPtr& part : parts) {
    if (part) adopt(*node, *part);
  }
  node->object = std::move(object);
  node->start = std::move(parts[0]);
  node->stop = std::move(parts[1]);
  node->step = std::move(parts[2]);
  return node;
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  auto node = make<CallExpr>(tokens_.line());
  arguments(*node, node->arguments);
  adopt(*node, *callee);
  node->callee = std::move(callee);
  return node;
}

void ExpressionParser::arguments(Node& node, ArgumentNodes& out) {
  tokens_.expect_operator("(");
  bool first = true;
  while (!tokens_.is_operator(")")) {
    if (!first) tokens_.expect_operator(",");
    first = false;
    if (tokens_.is_operator(")")) break;
    argument(node, out);
  }
  tokens_.expect_operator(")");
}

void ExpressionParser::argument(Node& node, ArgumentNodes& out) {
  const auto check = [this](bool allowed) {
    if (!allowed) tokens_.fail("the arguments of a call are in an order that is not allowed");
  };
  if (tokens_.skip_operator("*")) {
    check(!out.more_positional && !out.more_named);
    out.more_positional = expression();
    adopt(node, *out.more_positional);
  } else if (tokens_.skip_operator("**")) {
    check(!out.more_named);
    out.more_named = expression();
    adopt(node, *out.more_named);
  } else if (tokens_.is(TokenKind::Name) && tokens_.ahead_is_operator("=")) {
    check(!out.more_named);
    std::string key = tokens_.next().text;
    for (const auto& named : out.named) {
      if (named.first == key) tokens_.fail("the argument '" + key + "' is given twice");
    }
    tokens_.next();
    out.named.emplace_back(std::move(key), expression());
    adopt(node, *out.named.back().second);
  } else {
    check(!out.more_positional && !out.more_named && out.named.empty());
    out.positional.push_back(expression());
    adopt(node, *out.positional.back());
  }
}

ExprPtr ExpressionParser::filters(ExprPtr value, bool inline_first) {
  while (inline_first || tokens_.is_operator("|")) {
    if (!inline_first) tokens_.next();
    inline_first = false;
    auto node = make<FilterExpr>(tokens_.line());
    node->name = tokens_.expect(TokenKind::Name, "the name of a filter").text;
    node->filter = find_filter(node->name);
    if (tokens_.is_operator("(")) arguments(*node, node->arguments);
    adopt(*node, *value);
    node->value = std::move(value);
    value = std::move(node);
  }
  return value;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr value) {
  while (true) {
    if (tokens_.is_operator("|"))
      value = filters(std::move(value));
    else if (tokens_.is_name("is"))
      value = test(std::move(value));
    else if (tokens_.is_operator("("))
      value = call(std::move(value));
    else
      return value;
  }
}

ExprPtr ExpressionParser::test(ExprPtr value) {
  const int line = tokens_.next().line;
  const bool negative = tokens_.skip_name("not");
  auto node = make<TestExpr>(line);
  node->name = tokens_.expect(TokenKind::Name, "the name of a test").text;
  node->test = find_test(node->name);
  const bool value_follows = tokens_.is(TokenKind::Name) || tokens_.is(TokenKind::String) ||
                             tokens_.is(TokenKind::Integer) || tokens_.is(TokenKind::Float) ||
                             tokens_.is_operator("[") || tokens_.is_operator("{");
  if (tokens_.is_operator("(")) {
    arguments(*node, node->arguments);
  } else if (value_follows && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and")) {
    if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained with 'is'");
    const Nest nest(*this);
    node->arguments.positional.push_back(postfix(primary()));
    adopt(*node, *node->arguments.positional.back());
  }
  adopt(*node, *value);
  node->value = std::move(value);
  if (!negative) return node;
  auto opposite = make<UnaryExpr>(line);
  adopt(*opposite, *node);
  opposite->operand = std::move(node);
  return opposite;
}

}  // namespace sluice::text::jinja
