// The parser's place among the tokens, and its questions about what comes next.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/lexer.h"

namespace sluice::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  /// The current token; moves on, but never past the end.
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_name(std::string_view name) const { return is(TokenKind::Name) && current().text == name; }
  bool is_operator(std::string_view op) const { return is(TokenKind::Operator) && current().text == op; }
  bool ahead_is_operator(std::string_view op) const {
    return ahead().kind == TokenKind::Operator && ahead().text == op;
  }

  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }
  bool skip_operator(std::string_view op) { return is_operator(op) && (next(), true); }

  [[noreturn]] void fail(std::string message) const { throw Failure{std::move(message), line()}; }
  const Token& expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail("expected " + std::string(what) + ", got " + describe(current()));
    return next();
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) fail("expected '" + std::string(op) + "', got " + describe(current()));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail("expected '" + std::string(name) + "', got " + describe(current()));
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace sluice::text::jinja
