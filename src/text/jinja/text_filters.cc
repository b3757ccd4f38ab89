// Filters that make text.
#include <algorithm>
#include <iterator>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/format.h"
#include "text/jinja/print.h"
#include "text/jinja/tables.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

/// A filter that rewrites str(value) and takes no arguments.
template <std::string (*rewrite)(std::string_view)>
Value rewritten_text(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("the filter", arguments);
  const Value text = to_string(in.heap(), value);
  in.heap().check_room(text.as_string().size(), 3);
  in.heap().pass(text.as_string().size());
  return in.heap().string(rewrite(text.as_string()));
}

/// Upper case after white space, hyphens and opening brackets, lower case elsewhere.
std::string title_words(std::string_view text) {
  std::string out;
  size_t start = 0;
  const auto add_word = [&](size_t end) {
    out += capitalize(text.substr(start, end - start));
    start = end;
  };
  for (size_t at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    if (is_space(c.code) ||
        (c.code < 0x80 && std::string_view("-({[<").find(text[at]) != std::string_view::npos)) {
      add_word(at);
      out += text.substr(at, c.length);
      start = at + c.length;
    }
    at += c.length;
  }
  add_word(text.size());
  return out;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out.push_back(c);
    }
  }
  return out;
}

Value escape(Interp& in, const Value& value, Arguments& arguments) {
  const Value text = to_string(in.heap(), value);
  in.heap().check_room(text.as_string().size(), 5);
  return rewritten_text<html_escaped>(in, text, arguments);
}

Value string(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("string", arguments);
  return to_string(in.heap(), value);
}

Value trim(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("trim", arguments, {"chars"});
  const Value text = to_string(in.heap(), value);
  in.heap().pass(text.as_string().size());
  const std::string_view all = text.as_string();
  const std::string_view inner =
      args.given(0) ? strip_set(all, args.string(0, ""), true, true) : strip_spaces(all, true, true);
  return in.heap().string(std::string(inner));
}

Value replace_text(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("replace", arguments, {"old", "new", "count"}, 2);
  const Value text = to_string(in.heap(), value);
  return replaced(in.heap(), text.as_string(), str_of(in.heap(), *args[0]), str_of(in.heap(), *args[1]),
                  args.integer(2, -1));
}

Value center(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("center", arguments, {"width"});
  const Value text = to_string(in.heap(), value);
  return padded(in.heap(), text.as_string(), args.integer(0, 80), ' ', Align::Center);
}

Value indent(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("indent", arguments, {"width", "first", "blank"});
  Heap& heap = in.heap();
  std::string margin;
  if (args[0] != nullptr && args[0]->is_string()) {
    margin = args[0]->as_string();
  } else {
    const int64_t width = std::max<int64_t>(args.integer(0, 4), 0);
    heap.check_room(static_cast<size_t>(width));
    margin.assign(static_cast<size_t>(width), ' ');
  }
  if (!value.is_string()) refuse("indent needs a string, not {}", type_name(value));
  const bool first = args.flag(1, false), blank = args.flag(2, false);
  const std::string text = value.as_string() + "\n";
  const std::vector<std::string_view> lines = split_lines(text);
  Text out(heap);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) out.append('\n');
    if (i == 0 ? first : (blank || !lines[i].empty())) out.append(margin);
    out.append(lines[i]);
  }
  return out.value();
}

Value truncate(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const int64_t length = args.integer(0, 255), leeway = args.integer(3, 5);
  const std::string end = args.string(2, "...");
  const auto end_length = static_cast<int64_t>(count_characters(end));
  if (length < end_length || leeway < 0) refuse("truncate: the length or leeway is too small");
  if (!value.is_string()) refuse("truncate needs a string, not {}", type_name(value));
  const std::string& text = value.as_string();
  in.heap().pass(text.size());
  const auto size = static_cast<int64_t>(count_characters(text));
  if (size <= leeway || size - leeway <= length) return value;
  std::string_view kept =
      std::string_view(text).substr(0, byte_of_character(text, static_cast<size_t>(length - end_length)));
  if (!args.flag(1, false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return in.heap().string(std::string(kept) + end);
}

Value wordcount(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("wordcount", arguments);
  const Value text = to_string(in.heap(), value);
  in.heap().pass(text.as_string().size());
  int64_t count = 0;
  bool inside = false;
  for (std::string_view rest = text.as_string(); !rest.empty();) {
    const Character c = first_character(rest);
    const bool part = is_alpha(c.code) || c.code == '_' || (c.code >= '0' && c.code <= '9');
    count += part && !inside;
    inside = part;
    rest.remove_prefix(c.length);
  }
  return Value::integer(count);
}

Value urlencode(Interp& in, const Value& value, Arguments& arguments) {
  const Bound none("urlencode", arguments);
  if (!value.is_string()) refuse("urlencode needs a string, not {}", type_name(value));
  Text out(in.heap());
  for (const char c : value.as_string()) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    if (plain)
      out.append(c);
    else
      out.append(fmt::format("%{:02X}", static_cast<unsigned char>(c)));
  }
  return out.value();
}

Value format_text(Interp& in, const Value& value, Arguments& arguments) {
  const Value text = to_string(in.heap(), value);
  if (!arguments.named.empty() && !arguments.positional.empty())
    refuse("format takes either positional or named arguments");
  if (arguments.named.empty())
    return format_percent(in.heap(), text.as_string(), in.heap().tuple(arguments.positional));
  Dict named;
  for (const auto& [name, entry] : arguments.named) named.set(in.heap().string(name), entry);
  return format_percent(in.heap(), text.as_string(), in.heap().dict(std::move(named)));
}

std::optional<std::string> json_indent(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (value.is_string()) return value.as_string();
  if (!value.is_integral()) refuse("tojson: 'indent' must be an integer or a string");
  if (value.as_int() > 1000) refuse("tojson: 'indent' is too large");
  return std::string(static_cast<size_t>(std::max<int64_t>(value.as_int(), 0)), ' ');
}

Value tojson(Interp& in, const Value& value, Arguments& arguments) {
  const Bound args("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = args.flag(0, false);
  style.indent = json_indent(args.value(1));
  if (style.indent) style.item_separator.assign(1, ',');
  if (args.given(2)) {
    const std::vector<Value> pair = items_of(in.heap(), *args[2]);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      refuse("tojson: 'separators' must be two strings");
    style.item_separator = pair[0].as_string();
    style.key_separator = pair[1].as_string();
  }
  style.sort_keys = args.flag(3, false);
  Text out(in.heap());
  print_json(out, in.heap(), value, style);
  return out.value();
}

constexpr Row<Filter> kTextFilters[] = {{"capitalize", rewritten_text<capitalize>},
                                        {"center", center},
                                        {"e", escape},
                                        {"escape", escape},
                                        {"forceescape", escape},
                                        {"format", format_text},
                                        {"indent", indent},
                                        {"lower", rewritten_text<to_lower>},
                                        {"replace", replace_text},
                                        {"safe", string},
                                        {"string", string},
                                        {"title", rewritten_text<title_words>},
                                        {"tojson", tojson},
                                        {"trim", trim},
                                        {"truncate", truncate},
                                        {"upper", rewritten_text<to_upper>},
                                        {"urlencode", urlencode},
                                        {"wordcount", wordcount}};

}  // namespace

std::span<const Row<Filter>> text_filters() { return kTextFilters; }

}  // namespace sluice::text::jinja
