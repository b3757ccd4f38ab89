// Python's str.format: {}, {0}, {name.attribute[key]!r:<10.2f}.
#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/failure.h"
#include "text/jinja/format.h"
#include "text/jinja/interp.h"
#include "text/jinja/literals.h"
#include "text/jinja/number_format.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

/// What stands behind the colon of a field.
struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', type = '\0';
  char group = '\0';  ///< ',' or '_' between thousands
  bool alternate = false, zero = false;
  int64_t width = 0, precision = -1;
};

bool take(std::string_view& text, std::string_view any_of, char& out) {
  if (text.empty() || any_of.find(text[0]) == std::string_view::npos) return false;
  out = text[0];
  text.remove_prefix(1);
  return true;
}

int64_t take_size(std::string_view& text) {
  int64_t size = -1;
  for (char digit; take(text, "0123456789", digit);) {
    size = std::max<int64_t>(size, 0) * 10 + (digit - '0');
    if (size > (int64_t{1} << 40)) refuse("a format's width is too large");
  }
  return size;
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  const size_t first = text.empty() ? 0 : first_character(text).length;
  if (text.size() > first && std::string_view("<>^=").find(text[first]) != std::string_view::npos) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    text.remove_prefix(first + 1);
  } else {
    take(text, "<>^=", spec.align);
  }
  char flag;
  take(text, "+- ", spec.sign);
  spec.alternate = take(text, "#", flag);
  spec.zero = take(text, "0", flag);
  spec.width = std::max<int64_t>(take_size(text), 0);
  take(text, ",_", spec.group);
  if (take(text, ".", flag)) {
    spec.precision = take_size(text);
    if (spec.precision < 0) refuse("a format's precision is missing");
  }
  take(text, "bcdeEfFgGnosxX%", spec.type);
  if (!text.empty()) refuse("a format specification cannot be read at '{}'", text.substr(0, 40));
  return spec;
}

void print_padded(Text& out, const Spec& spec, std::string_view prefix, std::string_view body, char align) {
  const auto size = static_cast<int64_t>(prefix.size() + count_characters(body));
  const int64_t missing = std::max<int64_t>(spec.width - size, 0);
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const std::string fill = spec.zero && spec.align == '\0' ? "0" : spec.fill;
  const auto pad = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.append(fill);
  };
  if (align == '=') out.append(prefix);
  pad(before);
  if (align != '=') out.append(prefix);
  out.append(body);
  pad(missing - before);
}

std::string grouped(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i != 0 && (whole - i) % 3 == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + digits.substr(whole);
}

/// The digits of a float without a type: repr, or precision significant digits with one decimal at least.
std::string plain_float(double value, int64_t precision) {
  if (precision < 0) return float_repr(std::fabs(value));
  std::string digits = float_digits(value, 'g', precision);
  if (digits.find_first_of(".einf") == std::string::npos) digits += ".0";
  return digits;
}

void print_number(Text& out, const Value& value, const Spec& spec) {
  const bool as_float =
      value.is(Kind::Float) || std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  std::string digits, prefix;
  if (as_float && spec.type != '\0' && std::string_view("eEfFgG%n").find(spec.type) == std::string_view::npos)
    refuse("unknown format code '{}' for a float", spec.type);
  if (as_float) {
    const double number = value.as_double();
    const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
    prefix = sign_text(std::signbit(number), spec.sign);
    if (spec.type == '\0')
      digits = plain_float(number, spec.precision);
    else if (spec.type == '%')
      digits = float_digits(number * 100, 'f', precision) + "%";
    else
      digits = float_digits(number, spec.type == 'n' ? 'g' : spec.type, precision);
  } else {
    if (spec.precision >= 0) refuse("a precision is not allowed in an integer's format");
    const int64_t number = value.as_int();
    prefix = sign_text(number < 0, spec.sign);
    if (spec.alternate && std::string_view("boxX").find(spec.type) != std::string_view::npos &&
        spec.type != '\0')
      prefix += std::string("0") + spec.type;
    digits = integer_digits(number, spec.type);
  }
  if (spec.group != '\0') digits = grouped(digits, spec.group);
  const char otherwise = spec.zero ? '=' : '>';
  print_padded(out, spec, prefix, digits, spec.align != '\0' ? spec.align : otherwise);
}

void print_value(Text& out, Heap& heap, const Value& value, const Spec& spec, bool is_empty) {
  if (is_empty) return print_str(out, heap, value);
  const bool number = value.is_number() && !(value.is(Kind::Bool) && spec.type == '\0');
  if (number && spec.type != 's' && spec.type != 'c') return print_number(out, value, spec);
  if (!value.is_string() && !value.is(Kind::Bool))
    refuse("unsupported format string passed to {}", type_name(value));
  if (spec.type != '\0' && spec.type != 's') refuse("unknown format code '{}' for a string", spec.type);
  if (spec.align == '=' || spec.sign != '-') refuse("this format is not allowed for a string");
  std::string text = str_of(heap, value);
  if (spec.precision >= 0) text.resize(byte_of_character(text, static_cast<size_t>(spec.precision)));
  print_padded(out, spec, "", text, spec.align != '\0' ? spec.align : '<');
}

class BraceFormat {
 public:
  BraceFormat(Interp& in, const Arguments& arguments) : in_(in), arguments_(arguments) {}

  /// Formats up to the end of the pattern. Fields inside a specification are formatted first.
  void run(Text& out, std::string_view pattern, int depth) {
    if (depth > 2) refuse("a format string is nested too deeply");
    while (!pattern.empty()) {
      const size_t plain = std::min(pattern.find_first_of("{}"), pattern.size());
      out.append(pattern.substr(0, plain));
      pattern.remove_prefix(plain);
      if (pattern.empty()) break;
      const char brace = pattern[0];
      pattern.remove_prefix(1);
      if (!pattern.empty() && pattern[0] == brace && depth == 1) {
        out.append(brace);
        pattern.remove_prefix(1);
        continue;
      }
      if (brace == '}') refuse("a single '}}' stands in a format string");
      const size_t end = field_end(pattern);
      field(out, pattern.substr(0, end), depth);
      pattern.remove_prefix(end + 1);
    }
  }

 private:
  static size_t field_end(std::string_view pattern) {
    int open = 1;
    for (size_t i = 0; i < pattern.size(); ++i) {
      open += pattern[i] == '{' ? 1 : pattern[i] == '}' ? -1 : 0;
      if (open == 0) return i;
    }
    refuse("a '{{' of a format string has no '}}'");
  }

  void field(Text& out, std::string_view text, int depth) {
    const size_t bracket = std::min(text.find('['), text.size());
    size_t end = text.find_first_of("!:");
    if (end != text.npos && bracket < end)
      end = text.find_first_of("!:", std::min(text.find(']'), text.size()));
    const std::string_view name = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end);
    Value value = look_up(name);
    if (!text.empty() && text[0] == '!') {
      const char conversion = text.size() > 1 ? text[1] : '\0';
      if (conversion != 'r' && conversion != 's') refuse("a format string converts with !r or !s only");
      if (text.size() > 2 && text[2] != ':') refuse("expected ':' after a conversion of a format string");
      Text converted(in_.heap());
      if (conversion == 'r')
        print_repr(converted, in_.heap(), value);
      else
        print_str(converted, in_.heap(), value);
      value = converted.value();
      text.remove_prefix(2);
    }
    Text spec(in_.heap());
    if (!text.empty()) run(spec, text.substr(1), depth + 1);
    print_value(out, in_.heap(), value, parse_spec(spec.view()), spec.view().empty());
  }

  /// name.attribute[item]...
  Value look_up(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool item = path[0] == '[';
      path.remove_prefix(1);
      const size_t stop = item ? path.find(']') : std::min(path.find_first_of(".["), path.size());
      if (stop == path.npos) refuse("a '[' of a format string has no ']'");
      const std::string_view key = path.substr(0, stop);
      const auto number = item ? parse_integer(key, 10) : std::nullopt;
      if (item)
        value = get_item(in_, value, number ? Value::integer(*number) : in_.heap().string(std::string(key)));
      else
        value = get_attribute(in_, value, key);
      if (value.is_undefined()) refuse("{}", value.why_undefined());
      path.remove_prefix(stop + (item ? 1 : 0));
    }
    return value;
  }

  Value argument(std::string_view name) {
    std::optional<int64_t> index = name.empty() ? std::optional<int64_t>(next_++) : parse_integer(name, 10);
    if (index) {
      if (*index < 0 || static_cast<size_t>(*index) >= arguments_.positional.size())
        refuse("a format string asks for argument {}, which is not there", *index);
      return arguments_.positional[static_cast<size_t>(*index)];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    refuse("a format string asks for '{}', which is not there", name.substr(0, 80));
  }

  Interp& in_;
  const Arguments& arguments_;
  int64_t next_ = 0;
};

}  // namespace

Value format_braces(Interp& in, std::string_view pattern, const Arguments& arguments) {
  Text out(in.heap());
  BraceFormat(in, arguments).run(out, pattern, 1);
  return out.value();
}

}  // namespace sluice::text::jinja
