// str() and repr() of values. JSON is in json.cc.
#include "text/jinja/print.h"

#include <charconv>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string digits(buffer, end);  // "-1.25e-07"
  const size_t e = digits.find('e');
  const int exponent = std::stoi(digits.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return digits;  // both write exponents with two digits at least
  digits.resize(e);
  std::string out = digits[0] == '-' ? "-" : "";
  std::string figures;
  for (const char c : digits) {
    if (c >= '0' && c <= '9') figures.push_back(c);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + figures;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (figures.size() <= whole) return out + figures + std::string(whole - figures.size(), '0') + ".0";
  return out + figures.substr(0, whole) + "." + figures.substr(whole);
}

namespace {

void print_escaped(Text& out, char32_t code, std::string_view bytes, char quote) {
  switch (code) {
    case '\n': return out.append("\\n");
    case '\r': return out.append("\\r");
    case '\t': return out.append("\\t");
    case '\\': return out.append("\\\\");
    default: break;
  }
  if (code == static_cast<char32_t>(quote)) {
    out.append('\\');
    out.append(quote);
  } else if (is_printable(code)) {
    out.append(bytes);
  } else if (code < 0x100) {
    out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(code)));
  } else if (code < 0x10000) {
    out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(code)));
  } else {
    out.append(fmt::format("\\U{:08x}", static_cast<uint32_t>(code)));
  }
}

void print_quoted(Text& out, std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  out.append(quote);
  size_t plain = 0;  // bytes at the front that go out as they are
  while (plain < text.size()) {
    const Character character = first_character(text.substr(plain));
    const bool as_is = character.code >= 0x20 && character.code < 0x7F && character.code != '\\' &&
                       character.code != static_cast<char32_t>(quote);
    if (as_is) {
      ++plain;
      continue;
    }
    out.append(text.substr(0, plain));
    print_escaped(out, character.code, text.substr(plain, character.length), quote);
    text.remove_prefix(plain + character.length);
    plain = 0;
  }
  out.append(text);
  out.append(quote);
}

void print_items(Text& out, Heap& heap, const std::vector<Value>& items, size_t limit = SIZE_MAX) {
  for (size_t i = 0; i < items.size() && i < limit; ++i) {
    if (i != 0) out.append(", ");
    print_repr(out, heap, items[i]);
  }
}

/// "range(2, 8, 3)" from the items; which end was asked for cannot be told, any that gives these items will
/// do.
void print_range(Text& out, const List& list) {
  if (list.items.empty()) return out.append("range(0, 0)");
  const int64_t first = list.items[0].as_int();
  const int64_t step = list.items.size() > 1 ? list.items[1].as_int() - first : 1;
  const int64_t end = list.items.back().as_int() + (step > 0 ? 1 : -1);
  if (step == 1) return out.append(fmt::format("range({}, {})", first, end));
  out.append(fmt::format("range({}, {}, {})", first, end, step));
}

void print_list(Text& out, Heap& heap, const List& list) {
  const auto wrapped = [&](std::string_view before, std::string_view after) {
    out.append(before);
    print_items(out, heap, list.items);
    out.append(after);
  };
  switch (list.flavour) {
    case Flavour::List: return wrapped("[", "]");
    case Flavour::Tuple:
    case Flavour::Group: return wrapped("(", list.items.size() == 1 ? ",)" : ")");
    case Flavour::Range: return print_range(out, list);
    case Flavour::Keys: return wrapped("dict_keys([", "])");
    case Flavour::Values: return wrapped("dict_values([", "])");
    case Flavour::Items: return wrapped("dict_items([", "])");
    case Flavour::Generator: return out.append("<generator object>");
  }
}

void print_dict(Text& out, Heap& heap, const Dict& dict) {
  out.append('{');
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.append(", ");
    first = false;
    print_repr(out, heap, key);
    out.append(": ");
    print_repr(out, heap, value);
  }
  out.append('}');
}

}  // namespace

void print_repr(Text& out, Heap& heap, const Value& value) {
  heap.step();
  const Heap::Level level(heap);
  switch (value.kind()) {
    case Kind::Undefined: return out.append("Undefined");
    case Kind::None: return out.append("None");
    case Kind::Bool: return out.append(value.as_bool() ? "True" : "False");
    case Kind::Int: return out.append(std::to_string(value.as_int()));
    case Kind::Float: return out.append(value.written() ? *value.written() : float_repr(value.as_double()));
    case Kind::String: return print_quoted(out, value.as_string());
    case Kind::List: return print_list(out, heap, value.as_list());
    case Kind::Dict: return print_dict(out, heap, value.as_dict());
    case Kind::Namespace:
      out.append("<Namespace ");
      print_dict(out, heap, value.as_namespace().attributes);
      return out.append('>');
    case Kind::Function: {
      const Function& function = value.as_function();
      if (function.macro != nullptr) return out.append(fmt::format("<Macro '{}'>", function.name));
      return out.append(fmt::format("<function {}>", function.name));
    }
    case Kind::Loop:
      return out.append(fmt::format("<LoopContext {}/{}>", value.as_loop().index0 + 1,
                                    value.as_loop().items->items.size()));
  }
}

void print_str(Text& out, Heap& heap, const Value& value) {
  if (value.is_string()) return out.append(value.as_string());
  if (!value.is_undefined()) print_repr(out, heap, value);
}

Value to_string(Heap& heap, const Value& value) {
  if (value.is_string()) return value;
  Text out(heap);
  print_str(out, heap, value);
  return out.value();
}

std::string str_of(Heap& heap, const Value& value) {
  Text out(heap);
  print_str(out, heap, value);
  return out.take();
}

}  // namespace sluice::text::jinja
