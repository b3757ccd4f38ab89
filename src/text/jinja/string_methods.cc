// Python's methods of strings.
#include <algorithm>

#include "text/jinja/arguments.h"
#include "text/jinja/failure.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/tables.h"
#include "text/jinja/text_search.h"
#include "text/jinja/unicode.h"

namespace sluice::text::jinja {

namespace {

Value text_value(Interp& in, std::string_view text) { return in.heap().string(std::string(text)); }

template <std::string (*rewrite)(std::string_view)>
Value rewritten(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("the method", arguments);
  in.heap().check_room(self.as_string().size(), 3);
  in.heap().pass(self.as_string().size());
  return in.heap().string(rewrite(self.as_string()));
}

template <bool left, bool right>
Value strip(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("strip", arguments, {"chars"});
  const std::string& text = self.as_string();
  in.heap().pass(text.size());
  return text_value(
      in, args.given(0) ? strip_set(text, args.string(0, ""), left, right) : strip_spaces(text, left, right));
}

/// The parts of a text between white space, at most `limit` splits (negative: all).
std::vector<std::string_view> split_at_spaces(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  while (true) {
    text = strip_spaces(text, true, false);
    if (text.empty()) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Character c = first_character(text.substr(end));
      if (is_space(c.code)) break;
      end += c.length;
    }
    parts.push_back(text.substr(0, end));
    text = text.substr(end);
  }
  return parts;
}

/// The same with the splits at the end of the text: what is too much stays as it is at its beginning.
std::vector<std::string_view> rsplit_at_spaces(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts = split_at_spaces(text, -1);
  if (limit < 0 || static_cast<int64_t>(parts.size()) <= limit) return parts;
  const auto rest = parts.end() - limit - 1;
  *rest = text.substr(0, static_cast<size_t>(rest->data() + rest->size() - text.data()));
  parts.erase(parts.begin(), rest);
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t limit,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? rfind_text(text, separator) : find_text(text, separator);
    if (at == text.npos) break;
    const std::string_view after = text.substr(at + separator.size());
    parts.push_back(from_right ? after : text.substr(0, at));
    text = from_right ? text.substr(0, at) : after;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value list_of(Interp& in, const std::vector<std::string_view>& parts) {
  in.heap().check_room(parts.size(), sizeof(Value));
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const std::string_view part : parts) out.push_back(text_value(in, part));
  return in.heap().list(std::move(out));
}

template <bool from_right>
Value split(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("split", arguments, {"sep", "maxsplit"});
  const std::string& text = self.as_string();
  const int64_t limit = args.integer(1, -1);
  in.heap().pass(text.size());
  in.heap().check_room(text.size());
  if (!args.given(0))
    return list_of(in, from_right ? rsplit_at_spaces(text, limit) : split_at_spaces(text, limit));
  const std::string separator = args.string(0, "");
  if (separator.empty()) refuse("empty separator");
  return list_of(in, split_at(text, separator, limit, from_right));
}

Value splitlines(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("splitlines", arguments, {"keepends"});
  in.heap().pass(self.as_string().size());
  return list_of(in, split_lines(self.as_string(), args.flag(0, false)));
}

template <bool from_right>
Value partition(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("partition", arguments, {"sep"}, 1);
  const std::string_view text = self.as_string();
  const std::string separator = args.string(0, "");
  if (separator.empty()) refuse("empty separator");
  in.heap().pass(text.size());
  const size_t at = from_right ? rfind_text(text, separator) : find_text(text, separator);
  const auto part = [&in](std::string_view piece) { return text_value(in, piece); };
  if (at == text.npos)
    return from_right ? in.heap().tuple({part(""), part(""), self})
                      : in.heap().tuple({self, part(""), part("")});
  return in.heap().tuple(
      {part(text.substr(0, at)), part(separator), part(text.substr(at + separator.size()))});
}

/// The part of a text that `start` and `end` arguments select.
std::string_view selected(Interp& in, std::string_view text, const Bound& args, size_t first) {
  if (!args.given(first) && !args.given(first + 1)) return text;
  in.heap().pass(text.size());
  const auto size = static_cast<int64_t>(count_characters(text));
  const auto place = [&](size_t index, int64_t otherwise) {
    const int64_t at = args.integer(index, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  if (args.integer(first, 0) > size) return {};
  const size_t begin = byte_of_character(text, static_cast<size_t>(place(first, 0)));
  const size_t end = byte_of_character(text, static_cast<size_t>(place(first + 1, size)));
  return end > begin ? text.substr(begin, end - begin) : text.substr(begin, 0);
}

template <bool at_end>
Value has_affix(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args(at_end ? "endswith" : "startswith", arguments, {"affix", "start", "end"}, 1);
  const std::string_view text = selected(in, self.as_string(), args, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) refuse("startswith and endswith need strings, not {}", type_name(affix));
    return at_end ? text.ends_with(affix.as_string()) : text.starts_with(affix.as_string());
  };
  if (!args[0]->is(Kind::List) || !args[0]->as_list().is_tuple()) return Value::boolean(matches(*args[0]));
  const auto& all = args[0]->as_list().items;
  return Value::boolean(std::any_of(all.begin(), all.end(), matches));
}

template <bool from_right, bool must>
Value find(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("find", arguments, {"sub", "start", "end"}, 1);
  const std::string& text = self.as_string();
  const std::string wanted = args.string(0, "");
  in.heap().pass(text.size());
  const std::string_view part = selected(in, text, args, 1);
  const size_t at = from_right ? rfind_text(part, wanted) : find_text(part, wanted);
  const bool outside = part.data() == nullptr;  // it starts behind the end
  if (at != part.npos && !outside) {
    const auto bytes = static_cast<size_t>(part.data() - text.data()) + at;
    return Value::integer(static_cast<int64_t>(count_characters(std::string_view(text).substr(0, bytes))));
  }
  if (must) refuse("substring not found");
  return Value::integer(-1);
}

Value count_text(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("count", arguments, {"sub", "start", "end"}, 1);
  const std::string_view text = selected(in, self.as_string(), args, 1);
  const std::string wanted = args.string(0, "");
  in.heap().pass(text.size());
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(count_characters(text)) + 1);
  int64_t found = 0;
  for (std::string_view rest = text; !rest.empty(); ++found) {
    const size_t at = find_text(rest, wanted);
    if (at == rest.npos) break;
    rest.remove_prefix(at + wanted.size());
  }
  return Value::integer(found);
}

Value replace(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("replace", arguments, {"old", "new", "count"}, 2);
  for (size_t i = 0; i < 2; ++i) {
    if (!args[i]->is_string()) refuse("replace needs strings, not {}", type_name(*args[i]));
  }
  return replaced(in.heap(), self.as_string(), args.string(0, ""), args.string(1, ""), args.integer(2, -1));
}

template <bool prefix>
Value remove_affix(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("removeprefix", arguments, {"affix"}, 1);
  std::string_view text = self.as_string();
  const std::string affix = args.string(0, "");
  if (prefix && text.starts_with(affix)) return text_value(in, text.substr(affix.size()));
  if (!prefix && text.ends_with(affix)) return text_value(in, text.substr(0, text.size() - affix.size()));
  return self;
}

Value join_strings(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("join", arguments, {"iterable"}, 1);
  Text out(in.heap());
  bool first = true;
  for (const Value& item : items_of(in.heap(), *args[0])) {
    if (!item.is_string()) refuse("join: expected strings, {} found", type_name(item));
    if (!first) out.append(self.as_string());
    first = false;
    out.append(item.as_string());
  }
  return out.value();
}

template <Align align>
Value pad(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("the method", arguments, {"width", "fillchar"}, 1);
  const std::string fill = args.string(1, " ");
  if (count_characters(fill) != 1) refuse("the fill character must be exactly one character long");
  return padded(in.heap(), self.as_string(), args.integer(0, 0), first_character(fill).code, align);
}

Value zfill(Interp& in, const Value& self, Arguments& arguments) {
  const Bound args("zfill", arguments, {"width"}, 1);
  std::string_view text = self.as_string();
  const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  const Value digits = padded(in.heap(), text.substr(has_sign ? 1 : 0),
                              args.integer(0, 0) - (has_sign ? 1 : 0), '0', Align::Right);
  if (!has_sign) return digits;
  Text out(in.heap());
  out.append(text[0]);
  out.append(digits.as_string());
  return out.value();
}

/// There is a character, and all are of one class.
template <bool (*belongs)(char32_t)>
Value all_are(Interp& in, const Value& self, Arguments& arguments) {
  const Bound none("the method", arguments);
  in.heap().pass(self.as_string().size());
  for (std::string_view rest = self.as_string(); !rest.empty();) {
    const Character c = first_character(rest);
    if (!belongs(c.code)) return Value::boolean(false);
    rest.remove_prefix(c.length);
  }
  return Value::boolean(!self.as_string().empty());
}

bool is_digit(char32_t code) { return code >= '0' && code <= '9'; }
bool is_alnum(char32_t code) { return is_digit(code) || is_alpha(code); }
bool is_ascii(char32_t code) { return code < 0x80; }

template <bool lower>
Value is_case(Interp& in, const Value& self, Arguments& arguments) {
  return Value::boolean(find_test(lower ? "lower" : "upper")(in, self, arguments));
}

Value format(Interp& in, const Value& self, Arguments& arguments) {
  return format_braces(in, self.as_string(), arguments);
}

constexpr Row<Method> kStringMethods[] = {{"capitalize", rewritten<capitalize>},
                                          {"casefold", rewritten<to_lower>},
                                          {"center", pad<Align::Center>},
                                          {"count", count_text},
                                          {"endswith", has_affix<true>},
                                          {"find", find<false, false>},
                                          {"format", format},
                                          {"index", find<false, true>},
                                          {"isalnum", all_are<is_alnum>},
                                          {"isalpha", all_are<is_alpha>},
                                          {"isascii", all_are<is_ascii>},
                                          {"isdecimal", all_are<is_digit>},
                                          {"isdigit", all_are<is_digit>},
                                          {"islower", is_case<true>},
                                          {"isnumeric", all_are<is_digit>},
                                          {"isspace", all_are<is_space>},
                                          {"isupper", is_case<false>},
                                          {"join", join_strings},
                                          {"ljust", pad<Align::Left>},
                                          {"lower", rewritten<to_lower>},
                                          {"lstrip", strip<true, false>},
                                          {"partition", partition<false>},
                                          {"removeprefix", remove_affix<true>},
                                          {"removesuffix", remove_affix<false>},
                                          {"replace", replace},
                                          {"rfind", find<true, false>},
                                          {"rindex", find<true, true>},
                                          {"rjust", pad<Align::Right>},
                                          {"rpartition", partition<true>},
                                          {"rsplit", split<true>},
                                          {"rstrip", strip<false, true>},
                                          {"split", split<false>},
                                          {"splitlines", splitlines},
                                          {"startswith", has_affix<false>},
                                          {"strip", strip<true, true>},
                                          {"swapcase", rewritten<swap_case>},
                                          {"title", rewritten<title>},
                                          {"upper", rewritten<to_upper>},
                                          {"zfill", zfill}};

}  // namespace

std::span<const Row<Method>> string_methods() { return kStringMethods; }

}  // namespace sluice::text::jinja
