// The % operator on strings, padding and replacing. Braces are in format_braces.cc.
#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/number_format.h"
#include "text/jinja/print.h"
#include "text/jinja/text_search.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

/// One %... of a pattern.
struct Conversion {
  bool left = false, zero = false, alternate = false;
  char sign = '-';
  int64_t width = 0, precision = -1;
  char type = 's';
};

class PercentFormat {
 public:
  PercentFormat(Heap& heap, std::string_view pattern, const Value& values)
      : heap_(heap), rest_(pattern), values_(values), out_(heap) {}

  Value run() {
    while (!rest_.empty()) {
      const size_t plain = std::min(rest_.find('%'), rest_.size());
      out_.append(rest_.substr(0, plain));
      rest_.remove_prefix(plain);
      if (rest_.empty()) break;
      rest_.remove_prefix(1);
      convert();
    }
    const bool tuple = values_.is(Kind::List) && values_.as_list().is_tuple();
    const bool unused = tuple ? used_ < values_.as_list().items.size()
                              : used_ == 0 && !by_name_ && !values_.is(Kind::Dict) && !values_.is(Kind::List);
    if (unused) refuse("not all arguments converted during string formatting");
    return out_.value();
  }

 private:
  char take() {
    if (rest_.empty()) refuse("incomplete format");
    const char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }

  Value next_value() {
    if (values_.is(Kind::List) && values_.as_list().is_tuple()) {
      if (used_ >= values_.as_list().items.size()) refuse("not enough arguments for format string");
      return values_.as_list().items[used_++];
    }
    if (used_++ != 0) refuse("not enough arguments for format string");
    return values_;
  }

  Value named_value() {
    const size_t close = rest_.find(')');
    if (close == rest_.npos) refuse("incomplete format key");
    const std::string_view name = rest_.substr(0, close);
    rest_.remove_prefix(close + 1);
    if (!values_.is(Kind::Dict)) refuse("format requires a mapping");
    const Value* found = values_.as_dict().find(name);
    if (found == nullptr) refuse("there is no value '{}' for the format", name);
    by_name_ = true;
    return *found;
  }

  /// Digits, or '*' for the next value; -1: neither.
  int64_t read_size() {
    if (!rest_.empty() && rest_[0] == '*') {
      take();
      return integer_for_format(next_value(), '*');
    }
    int64_t size = -1;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      size = std::max<int64_t>(size, 0) * 10 + (take() - '0');
      if (size > (int64_t{1} << 40)) refuse("a format's width is too large");
    }
    return size;
  }

  void convert() {
    Conversion c;
    bool named = false;
    Value value;
    if (!rest_.empty() && rest_[0] == '(') {
      take();
      value = named_value();
      named = true;
    }
    for (; !rest_.empty() && std::string_view("-0+ #").find(rest_[0]) != std::string_view::npos; take()) {
      c.left |= rest_[0] == '-';
      c.zero |= rest_[0] == '0';
      c.alternate |= rest_[0] == '#';
      if (rest_[0] == '+' || (rest_[0] == ' ' && c.sign != '+')) c.sign = rest_[0];
    }
    c.width = read_size();
    if (c.width < -1) {
      c.left = true;
      c.width = -c.width;
    }
    if (!rest_.empty() && rest_[0] == '.') {
      take();
      c.precision = std::max<int64_t>(read_size(), 0);
    }
    while (!rest_.empty() && std::string_view("hlL").find(rest_[0]) != std::string_view::npos) take();
    c.type = take();
    if (c.type == '%') return out_.append('%');
    print(c, named ? value : next_value());
  }

  void print(const Conversion& c, const Value& value) {
    switch (c.type) {
      case 's': return print_text(c, str_of(heap_, value));
      case 'r':
      case 'a': {
        Text text(heap_);
        print_repr(text, heap_, value);
        return print_text(c, text.take());
      }
      case 'c':
        if (value.is_string() && count_characters(value.as_string()) == 1)
          return print_text(c, value.as_string());
        refuse("%c requires a single character");
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': {
        const int64_t number = integer_for_format(value, c.type);
        std::string digits = integer_digits(number, c.type);
        if (c.precision > kMaxPrecision) refuse("a format's precision is too large");
        if (static_cast<int64_t>(digits.size()) < c.precision)
          digits.insert(0, static_cast<size_t>(c.precision) - digits.size(), '0');
        std::string prefix(sign_text(number < 0, c.sign));
        if (c.alternate && std::string_view("oxX").find(c.type) != std::string_view::npos)
          prefix += std::string("0") + c.type;
        return print_number(c, prefix, digits);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const double number = float_for_format(value);
        return print_number(c, std::string(sign_text(std::signbit(number), c.sign)),
                            float_digits(number, c.type, c.precision < 0 ? 6 : c.precision));
      }
      default: refuse("unsupported format character '{}'", c.type);
    }
  }

  void print_text(const Conversion& c, std::string_view text) {
    if (c.precision >= 0) text = text.substr(0, byte_of_character(text, static_cast<size_t>(c.precision)));
    const auto size = static_cast<int64_t>(count_characters(text));
    const size_t spaces = c.width > size ? static_cast<size_t>(c.width - size) : 0;
    if (!c.left) out_.append(spaces, ' ');
    out_.append(text);
    if (c.left) out_.append(spaces, ' ');
  }

  void print_number(const Conversion& c, const std::string& prefix, const std::string& digits) {
    const auto size = static_cast<int64_t>(prefix.size() + digits.size());
    const size_t fill = c.width > size ? static_cast<size_t>(c.width - size) : 0;
    const bool zeros = c.zero && !c.left;
    if (!c.left && !zeros) out_.append(fill, ' ');
    out_.append(prefix);
    if (zeros) out_.append(fill, '0');
    out_.append(digits);
    if (c.left) out_.append(fill, ' ');
  }

  Heap& heap_;
  std::string_view rest_;
  const Value& values_;
  Text out_;
  size_t used_ = 0;
  bool by_name_ = false;
};

}  // namespace

Value format_percent(Heap& heap, std::string_view pattern, const Value& values) {
  return PercentFormat(heap, pattern, values).run();
}

Value padded(Heap& heap, std::string_view text, int64_t width, char32_t fill, Align align) {
  const auto size = static_cast<int64_t>(count_characters(text));
  const int64_t missing = width > size ? width - size : 0;  // a width may be any number
  int64_t left = 0;
  if (align == Align::Right) left = missing;
  if (align == Align::Center) left = missing / 2 + (missing & width & 1);
  std::string unit;
  append_utf8(unit, fill);
  heap.check_room(static_cast<size_t>(missing), unit.size());
  Text out(heap);
  for (int64_t i = 0; i < left; ++i) out.append(unit);
  out.append(text);
  for (int64_t i = left; i < missing; ++i) out.append(unit);
  return out.value();
}

Value replaced(Heap& heap, std::string_view text, std::string_view old, std::string_view fresh,
               int64_t count) {
  Text out(heap);
  const auto may = [&count] { return count < 0 || count-- > 0; };
  if (old.empty()) {  // before every character and at the end
    while (!text.empty() && may()) {
      out.append(fresh);
      const size_t length = first_character(text).length;
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
    if (text.empty() && may()) out.append(fresh);
    out.append(text);
    return out.value();
  }
  heap.pass(text.size());
  for (size_t at = find_text(text, old); at != text.npos && may(); at = find_text(text, old)) {
    out.append(text.substr(0, at));
    out.append(fresh);
    text.remove_prefix(at + old.size());
  }
  out.append(text);
  return out.value();
}

}  // namespace sluice::text::jinja
