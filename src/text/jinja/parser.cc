// The grammar of statements: text, {{ }} and {% %}.
#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/jinja/expression_parser.h"

namespace sluice::text::jinja {

namespace {

using StmtPtr = std::unique_ptr<const Stmt>;
using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::string_view source, Symbols& symbols)
      : tokens_(tokenize(source)), symbols_(symbols), exprs_(tokens_, symbols) {}

  Body run() {
    Body body = statements({}, nullptr);
    if (!tokens_.is(TokenKind::End)) tokens_.fail("unexpected " + describe(tokens_.current()));
    return body;
  }

 private:
  /// Statements up to a tag whose name is one of `ends`; the stream then stands at that name.
  /// They become children of `parent`.
  Body statements(Names ends, Node* parent);
  /// The rest of a block: `%}`, statements, and, unless there are other ends, `{% end`.
  Body block(Names ends, Node& parent);
  Body block_to(std::string_view end, Node& parent);

  StmtPtr statement();
  StmtPtr print();
  StmtPtr if_statement();
  StmtPtr for_statement();
  StmtPtr set_statement();
  StmtPtr macro_statement();
  StmtPtr call_statement();
  StmtPtr filter_statement();
  StmtPtr with_statement();
  StmtPtr generation_statement();
  StmtPtr jump_statement(Flow flow);
  void signature(MacroNode& macro);
  void macro_body(MacroNode& macro, std::string_view end);

  TokenStream tokens_;
  Symbols& symbols_;
  ExpressionParser exprs_;
  int loops_ = 0;  ///< around the present place, inside the present macro
};

Body Parser::statements(Names ends, Node* parent) {
  const ExpressionParser::Nest nest(exprs_);
  Body body;
  const auto add = [&](StmtPtr node) {
    if (parent != nullptr) exprs_.adopt(*parent, *node);
    body.push_back(std::move(node));
  };
  while (!tokens_.is(TokenKind::End)) {
    if (tokens_.is(TokenKind::Data)) {
      auto node = make<TextStmt>(tokens_.line());
      node->text = tokens_.next().text;
      add(std::move(node));
      continue;
    }
    if (tokens_.is(TokenKind::PrintBegin)) {
      add(print());
      continue;
    }
    tokens_.next();  // {%
    const auto is_here = [this](std::string_view name) { return tokens_.is_name(name); };
    if (std::any_of(ends.begin(), ends.end(), is_here)) return body;
    add(statement());
    tokens_.expect(TokenKind::BlockEnd, "'%}'");
  }
  return body;
}

Body Parser::block(Names ends, Node& parent) {
  tokens_.skip_operator(":");
  tokens_.expect(TokenKind::BlockEnd, "'%}'");
  Body body = statements(ends, &parent);
  if (tokens_.is(TokenKind::End))
    throw Failure{"the block has no '" + std::string(*(ends.end() - 1)) + "'", parent.line};
  return body;
}

Body Parser::block_to(std::string_view end, Node& parent) {
  Body body = block({end}, parent);
  tokens_.next();
  return body;
}

StmtPtr Parser::print() {
  auto node = make<PrintStmt>(tokens_.next().line);
  node->value = exprs_.tuple();
  exprs_.adopt(*node, *node->value);
  tokens_.expect(TokenKind::PrintEnd, "'}}'");
  return node;
}

StmtPtr Parser::statement() {
  if (!tokens_.is(TokenKind::Name))
    tokens_.fail("expected the name of a tag, got " + describe(tokens_.current()));
  const std::string& tag = tokens_.current().text;
  if (tag == "if") return if_statement();
  if (tag == "for") return for_statement();
  if (tag == "set") return set_statement();
  if (tag == "macro") return macro_statement();
  if (tag == "call") return call_statement();
  if (tag == "filter") return filter_statement();
  if (tag == "with") return with_statement();
  if (tag == "generation") return generation_statement();
  if (tag == "break") return jump_statement(Flow::Break);
  if (tag == "continue") return jump_statement(Flow::Continue);
  tokens_.fail("unknown tag '" + tag + "'");
}

StmtPtr Parser::if_statement() {
  auto node = make<IfStmt>(tokens_.line());
  do {
    tokens_.next();  // if, elif
    ExprPtr condition = exprs_.tuple(false);
    exprs_.adopt(*node, *condition);
    node->branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}, *node));
  } while (tokens_.is_name("elif"));
  if (tokens_.skip_name("else")) node->otherwise = block({"endif"}, *node);
  tokens_.next();
  return node;
}

StmtPtr Parser::for_statement() {
  auto node = make<ForNode>(tokens_.next().line);
  node->target = exprs_.target(false, "in");
  tokens_.expect_name("in");
  node->items = exprs_.tuple(false, "recursive");
  exprs_.adopt(*node, *node->items);
  if (tokens_.skip_name("if")) {
    node->condition = exprs_.expression();
    exprs_.adopt(*node, *node->condition);
  }
  node->recursive = tokens_.skip_name("recursive");
  ++loops_;
  node->body = block({"else", "endfor"}, *node);
  --loops_;
  if (tokens_.skip_name("else")) node->otherwise = block({"endfor"}, *node);
  tokens_.next();
  return node;
}

StmtPtr Parser::set_statement() {
  const int line = tokens_.next().line;
  Target target = exprs_.target(true);
  if (tokens_.skip_operator("=")) {
    auto node = make<SetStmt>(line);
    node->target = std::move(target);
    node->value = exprs_.tuple();
    exprs_.adopt(*node, *node->value);
    return node;
  }
  auto node = make<SetBlockStmt>(line);
  node->target = std::move(target);
  node->value = exprs_.filters(make<CapturedExpr>(line));
  exprs_.adopt(*node, *node->value);
  node->body = block_to("endset", *node);
  return node;
}

void Parser::signature(MacroNode& macro) {
  tokens_.expect_operator("(");
  while (!tokens_.is_operator(")")) {
    if (!macro.parameters.empty()) tokens_.expect_operator(",");
    MacroNode::Parameter parameter;
    parameter.name = tokens_.expect(TokenKind::Name, "the name of a parameter").text;
    parameter.symbol = symbols_.intern(parameter.name);
    if (tokens_.skip_operator("=")) {
      parameter.value = exprs_.expression();
      exprs_.adopt(macro, *parameter.value);
    } else if (!macro.parameters.empty() && macro.parameters.back().value) {
      tokens_.fail("a parameter without a default follows one that has a default");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  tokens_.expect_operator(")");
}

/// The body of a macro or call block: loops outside are out of reach of its break and continue.
void Parser::macro_body(MacroNode& macro, std::string_view end) {
  const int loops_outside = std::exchange(loops_, 0);
  exprs_.macros().push_back(&macro);
  macro.body = block_to(end, macro);
  exprs_.macros().pop_back();
  loops_ = loops_outside;
}

StmtPtr Parser::macro_statement() {
  auto node = make<MacroNode>(tokens_.next().line);
  node->name = tokens_.expect(TokenKind::Name, "the name of a macro").text;
  node->symbol = symbols_.intern(node->name);
  signature(*node);
  macro_body(*node, "endmacro");
  return node;
}

StmtPtr Parser::call_statement() {
  auto node = make<CallBlockStmt>(tokens_.next().line);
  auto macro = make<MacroNode>(node->line);
  macro->name = "caller";
  if (tokens_.is_operator("(")) signature(*macro);
  ExprPtr call = exprs_.expression();
  if (dynamic_cast<const CallExpr*>(call.get()) == nullptr)
    throw Failure{"a call block needs the call of a macro", node->line};
  exprs_.adopt(*node, *call);
  node->call.reset(static_cast<const CallExpr*>(call.release()));
  macro_body(*macro, "endcall");
  exprs_.adopt(*node, *macro);
  node->macro = std::move(macro);
  return node;
}

StmtPtr Parser::filter_statement() {
  auto node = make<FilterBlockStmt>(tokens_.next().line);
  node->value = exprs_.filters(make<CapturedExpr>(node->line), true);
  exprs_.adopt(*node, *node->value);
  node->body = block_to("endfilter", *node);
  return node;
}

StmtPtr Parser::with_statement() {
  auto node = make<WithStmt>(tokens_.next().line);
  while (!tokens_.is(TokenKind::BlockEnd)) {
    if (!node->values.empty()) tokens_.expect_operator(",");
    Target target = exprs_.target(false);
    tokens_.expect_operator("=");
    node->values.emplace_back(std::move(target), exprs_.expression());
    exprs_.adopt(*node, *node->values.back().second);
  }
  node->body = block_to("endwith", *node);
  return node;
}

/// transformers marks what the assistant says with this tag; it prints its body.
StmtPtr Parser::generation_statement() {
  auto node = make<WithStmt>(tokens_.next().line);
  node->body = block_to("endgeneration", *node);
  return node;
}

StmtPtr Parser::jump_statement(Flow flow) {
  auto node = make<JumpStmt>(tokens_.line());
  if (loops_ == 0) tokens_.fail("'" + tokens_.current().text + "' stands outside of a loop");
  tokens_.next();
  node->flow = flow;
  return node;
}

}  // namespace

Body parse(std::string_view source, Symbols& symbols) { return Parser(source, symbols).run(); }

}  // namespace sluice::text::jinja
