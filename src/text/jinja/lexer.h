// A template's text cut into tokens, with white space around tags already taken off as Jinja does with
// trim_blocks and lstrip_blocks on. Knows no grammar beyond brackets that must match.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text::jinja {

enum class TokenKind : uint8_t {
  Data,        ///< text to print as it is
  PrintBegin,  ///< {{
  PrintEnd,    //
  BlockBegin,  ///< {%
  BlockEnd,    //
  Name,
  String,
  Integer,
  Float,
  Operator,  ///< its text is the operator
  End,       ///< of the template
};

struct Token {
  TokenKind kind;
  int line;          ///< 1 is the first
  std::string text;  ///< data, name, operator; the string that a literal stands for
  int64_t integer = 0;
  double real = 0;
};

/// All tokens of a template, the last being End. Throws Failure with its line.
std::vector<Token> tokenize(std::string_view source);

/// "'x'" or "end of template": a token as messages name it.
std::string describe(const Token& token);

}  // namespace sluice::text::jinja
