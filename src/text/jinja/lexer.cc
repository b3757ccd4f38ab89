// The lexer: text and comments first, then what stands inside tags. Literals are in literals.cc.
#include "text/jinja/lexer.h"

#include <algorithm>

#include "text/jinja/failure.h"
#include "text/jinja/literals.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

/// Line ends become "\n", and one at the very end goes.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_data();
    add(TokenKind::End, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_at_line(const std::string& message) const { throw Failure{message, line_}; }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view text) const { return rest().substr(0, text.size()) == text; }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  /// Moves on and counts lines.
  void skip(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    if (bytes > 0) line_starting_ = source_[at_ - 1] == '\n';
  }

  void skip_spaces() {
    const std::string_view stripped = strip_spaces(rest(), true, false);
    skip(rest().size() - stripped.size());
  }

  /// After a tag: "-" takes all white space, otherwise (unless kept by "+") one line end goes.
  void finish_tag(char sign, size_t close_length) {
    skip(close_length);
    if (sign == '-')
      skip_spaces();
    else if (sign != '+' && looking_at("\n"))
      skip(1);
  }

  /// Text before a tag, with what the tag's sign, or being first on its line, takes off its end.
  std::string_view before_tag(std::string_view text, char sign, bool strips_line) const {
    if (sign == '-') return strip_spaces(text, false, true);
    if (sign == '+' || !strips_line) return text;
    const size_t line_start = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line_start == 0 && !line_starting_) return text;
    return strip_spaces(text.substr(line_start), true, false).empty() ? text.substr(0, line_start) : text;
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  /// Text up to the next tag, and the tag.
  void lex_data() {
    size_t open = at_;
    while (true) {
      open = source_.find('{', open);
      if (open == source_.npos || open + 1 >= source_.size()) {
        add(TokenKind::Data, std::string(rest()));
        return skip(rest().size());
      }
      const char second = source_[open + 1];
      if (second == '{' || second == '%' || second == '#') break;
      ++open;
    }
    const char type = source_[open + 1];
    const char sign = sign_at(open + 2);
    const std::string_view data = before_tag(rest().substr(0, open - at_), sign, type != '{');
    if (!data.empty()) add(TokenKind::Data, std::string(data));
    skip(open - at_);
    if (type == '#') return lex_comment();
    if (type == '%' && raw_length(at_, "raw") != 0) return lex_raw();
    skip(sign == '\0' ? 2 : 3);
    add(type == '{' ? TokenKind::PrintBegin : TokenKind::BlockBegin, {});
    lex_tag(type == '{' ? "}}" : "%}");
  }

  void lex_comment() {
    const size_t close = source_.find("#}", at_ + 2);
    if (close == source_.npos) fail_at_line("the comment has no end");
    // "{#-#}": the sign belongs to the opening, as long as nothing else stands between.
    const char sign = close > at_ + 2 ? sign_at(close - 1) : '\0';
    skip(close - at_);
    finish_tag(sign, 2);
  }

  /// The length of a `{% word %}` tag at a place up to and with "%}"; 0: there is none.
  size_t raw_length(size_t at, std::string_view word) const {
    std::string_view text = std::string_view(source_).substr(at);
    const size_t whole = text.size();
    if (text.substr(0, 2) != "{%") return 0;
    text.remove_prefix(sign_at(at + 2) != '\0' ? 3 : 2);
    text = strip_spaces(text, true, false);
    if (text.substr(0, word.size()) != word) return 0;
    text = strip_spaces(text.substr(word.size()), true, false);
    if (!text.empty() && (text[0] == '-' || (text[0] == '+' && word == "endraw"))) text.remove_prefix(1);
    return text.substr(0, 2) == "%}" ? whole - text.size() + 2 : 0;
  }

  void lex_raw() {
    const size_t begin_length = raw_length(at_, "raw");
    const int begin_line = line_;
    const char begin_sign = sign_at(at_ + begin_length - 3);
    skip(begin_length);
    if (begin_sign == '-') skip_spaces();
    for (size_t end = source_.find("{%", at_); end != source_.npos; end = source_.find("{%", end + 1)) {
      const size_t end_length = raw_length(end, "endraw");
      if (end_length == 0) continue;
      const std::string_view data = before_tag(rest().substr(0, end - at_), sign_at(end + 2), true);
      if (!data.empty()) add(TokenKind::Data, std::string(data));
      skip(end - at_ + end_length - 2);
      return finish_tag(sign_at(at_ - 1), 2);
    }
    line_ = begin_line;
    fail_at_line("the raw block has no end");
  }

  /// Tokens up to the end of a tag. Inside brackets its closing characters are operators.
  void lex_tag(std::string_view close) {
    std::string open;  // the closing brackets that are still to come
    const int begin_line = line_;
    while (true) {
      skip_spaces();
      if (at_ >= source_.size()) {
        line_ = begin_line;
        fail_at_line(close == "}}" ? "'{{' has no '}}'" : "'{%' has no '%}'");
      }
      const char sign = sign_at(at_);
      if (open.empty() && rest().substr(sign == '\0' ? 0 : 1, 2) == close &&
          !(sign == '+' && close == "}}")) {
        add(close == "}}" ? TokenKind::PrintEnd : TokenKind::BlockEnd, {});
        skip(sign == '\0' ? 0 : 1);
        if (close == "%}") return finish_tag(sign, 2);
        skip(2);
        if (sign == '-') skip_spaces();
        return;
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && is_name_part(source_[end])) ++end;
      add(TokenKind::Name, source_.substr(at_, end - at_));
      return skip(end - at_);
    }
    lex_operator(open);
  }

  void lex_number() {
    const bool after_dot = !tokens_.empty() && at_ > 0 && source_[at_ - 1] == '.';
    const Number number = read_number(rest(), !after_dot);
    if (!number.fits) fail_at_line("the integer does not fit in 64 bits");
    tokens_.push_back({number.is_float ? TokenKind::Float : TokenKind::Integer, line_,
                       std::string(rest().substr(0, number.length)), number.integer, number.real});
    skip(number.length);
  }

  void lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at_line("the string has no end");
    const std::string_view inner = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    try {
      add(TokenKind::String, unescape(inner));
    } catch (Failure& failure) {
      fail_at_line(failure.message);
    }
    skip(end + 1 - at_);
  }

  void lex_operator(std::string& open) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!looking_at(op)) continue;
      const size_t opening = std::string_view("([{").find(op[0]);
      if (opening != std::string_view::npos) open.push_back(")]}"[opening]);
      if (std::string_view(")]}").find(op[0]) != std::string_view::npos) {
        if (open.empty()) fail_at_line(fmt::format("unexpected '{}'", op));
        if (open.back() != op[0])
          fail_at_line(fmt::format("unexpected '{}', expected '{}'", op, open.back()));
        open.pop_back();
      }
      add(TokenKind::Operator, std::string(op));
      return skip(op.size());
    }
    fail_at_line(fmt::format("unexpected character '{}'", rest().substr(0, first_character(rest()).length)));
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  ///< the last byte passed was a line end, or there was none
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::Data: return "text";
    case TokenKind::PrintBegin: return "'{{'";
    case TokenKind::PrintEnd: return "'}}'";
    case TokenKind::BlockBegin: return "'{%'";
    case TokenKind::BlockEnd: return "'%}'";
    case TokenKind::String: return "a string";
    case TokenKind::End: return "end of template";
    default: return fmt::format("'{}'", token.text.substr(0, 80));
  }
}

}  // namespace sluice::text::jinja
