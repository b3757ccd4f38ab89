// JSON out of values, as Python's json.dumps writes it, which transformers' tojson calls.
#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

class JsonPrinter {
 public:
  JsonPrinter(Text& out, Heap& heap, const JsonStyle& style) : out_(out), heap_(heap), style_(style) {}

  void print(const Value& value) {
    heap_.step();
    const Heap::Level level(heap_);
    switch (value.kind()) {
      case Kind::None: return out_.append("null");
      case Kind::Bool: return out_.append(value.as_bool() ? "true" : "false");
      case Kind::Int: return out_.append(std::to_string(value.as_int()));
      case Kind::Float: return out_.append(value.written() ? *value.written() : number(value.as_double()));
      case Kind::String: return print_quoted(value.as_string());
      case Kind::Dict: return print_object(value.as_dict());
      case Kind::List:
        if (value.as_list().flavour == Flavour::List || value.as_list().is_tuple())
          return print_array(value.as_list());
        break;
      case Kind::Undefined: refuse("{}: it cannot be turned into JSON", value.why_undefined());
      default: break;
    }
    refuse("a value of type '{}' cannot be turned into JSON", type_name(value));
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void print_escape(char32_t code, std::string_view bytes) {
    switch (code) {
      case '"': return out_.append("\\\"");
      case '\\': return out_.append("\\\\");
      case '\b': return out_.append("\\b");
      case '\f': return out_.append("\\f");
      case '\n': return out_.append("\\n");
      case '\r': return out_.append("\\r");
      case '\t': return out_.append("\\t");
      default: break;
    }
    const auto unit = [this](uint32_t u) { out_.append(fmt::format("\\u{:04x}", u)); };
    if (code >= 0x20 && !style_.ensure_ascii) return out_.append(bytes);
    if (code < 0x10000) return unit(code);
    unit(0xD800 + ((code - 0x10000) >> 10));
    unit(0xDC00 + ((code - 0x10000) & 0x3FF));
  }

  void print_quoted(std::string_view text) {
    out_.append('"');
    size_t plain = 0;  // bytes at the front that go out as they are
    while (plain < text.size()) {
      const auto byte = static_cast<unsigned char>(text[plain]);
      const bool as_is = byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7F || !style_.ensure_ascii);
      if (as_is) {
        ++plain;
        continue;
      }
      out_.append(text.substr(0, plain));
      text.remove_prefix(plain);
      const Character character = first_character(text);
      print_escape(character.code, text.substr(0, character.length));
      text.remove_prefix(character.length);
      plain = 0;
    }
    out_.append(text);
    out_.append('"');
  }

  void break_line() {
    if (!style_.indent) return;
    out_.append('\n');
    for (int i = 0; i < depth_; ++i) out_.append(*style_.indent);
  }

  void print_array(const List& list) {
    if (list.items.empty()) return out_.append("[]");
    out_.append('[');
    ++depth_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) out_.append(style_.item_separator);
      break_line();
      print(list.items[i]);
    }
    --depth_;
    break_line();
    out_.append(']');
  }

  void print_key(const Value& key) {
    if (key.is_string()) return print_quoted(key.as_string());
    out_.append('"');
    print(key);
    out_.append('"');
  }

  void print_object(const Dict& dict) {
    if (dict.size() == 0) return out_.append("{}");
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return compare(heap_, CompareOp::Less, a->first, b->first);
      });
    }
    out_.append('{');
    ++depth_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) out_.append(style_.item_separator);
      break_line();
      print_key(entries[i]->first);
      out_.append(style_.key_separator);
      print(entries[i]->second);
    }
    --depth_;
    break_line();
    out_.append('}');
  }

  Text& out_;
  Heap& heap_;
  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

void print_json(Text& out, Heap& heap, const Value& value, const JsonStyle& style) {
  JsonPrinter(out, heap, style).print(value);
}

}  // namespace sluice::text::jinja
