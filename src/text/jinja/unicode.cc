// Walking and classifying UTF-8. The case tables are in case_table.cc.
#include "text/jinja/unicode.h"

#include <algorithm>
#include <iterator>

#include "text/jinja/case_table.h"
#include "text/utf8.h"

namespace sluice::text::jinja {

namespace {

struct Range {
  char32_t first, last;
};

/// Control, format, separator, surrogate and private characters beyond ASCII.
constexpr Range kUnprintable[] = {
    {0x7F, 0xA0},       {0xAD, 0xAD},        {0x600, 0x605},     {0x61C, 0x61C},     {0x6DD, 0x6DD},
    {0x70F, 0x70F},     {0x890, 0x891},      {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},
    {0x2000, 0x200F},   {0x2028, 0x202F},    {0x205F, 0x2064},   {0x2066, 0x206F},   {0x3000, 0x3000},
    {0xD800, 0xF8FF},   {0xFEFF, 0xFEFF},    {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
    {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3},  {0x1D173, 0x1D17A}, {0xE0001, 0xE0001}, {0xE0020, 0xE007F},
    {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD}};

/// Blocks of punctuation, symbols and digits beyond ASCII.
constexpr Range kSymbols[] = {{0x80, 0xA9},       {0xAB, 0xB4},       {0xB6, 0xB9},     {0xBB, 0xBF},
                              {0xD7, 0xD7},       {0xF7, 0xF7},       {0x300, 0x36F},   {0x2000, 0x206F},
                              {0x20A0, 0x20FF},   {0x2190, 0x2BFF},   {0x3000, 0x3004}, {0x3007, 0x3030},
                              {0xD800, 0xF8FF},   {0xFE00, 0xFE6F},   {0xFF00, 0xFF20}, {0xFFF0, 0xFFFF},
                              {0x1F000, 0x1FAFF}, {0xE0000, 0x10FFFF}};

template <size_t count>
bool in_ranges(const Range (&ranges)[count], char32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [code](const Range& range) { return code >= range.first && code <= range.last; });
}

/// Writes each character of `text` as `write(out, character, its bytes)` has it.
template <typename Write>
std::string rewritten(std::string_view text, Write write) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    write(out, character.code, text.substr(0, character.length));
    text.remove_prefix(character.length);
  }
  return out;
}

void write_upper(std::string& out, char32_t code, std::string_view bytes) {
  const char32_t mapped = upper_of(code);
  if (code == 0xDF)
    out += "SS";
  else if (mapped == code)
    out += bytes;
  else
    append_utf8(out, mapped);
}

void write_lower(std::string& out, char32_t code, std::string_view bytes) {
  const char32_t mapped = lower_of(code);
  if (mapped == code)
    out += bytes;
  else
    append_utf8(out, mapped);
}

}  // namespace

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const Utf8Step step = utf8_step(text);
  if (step.kind != Utf8Step::Valid) return {0xFFFD, 1};
  char32_t code = byte(0) & (0x7Fu >> step.length);
  for (size_t i = 1; i < step.length; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, step.length};
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += first_character(text.substr(at)).length;
  return count;
}

std::vector<std::string_view> split_characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = first_character(text.substr(at)).length;
    out.push_back(text.substr(at, length));
    at += length;
  }
  return out;
}

size_t byte_of_character(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += first_character(text.substr(at)).length;
  return at;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool is_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  return !in_ranges(kUnprintable, code);
}

bool is_upper(char32_t code) { return lower_of(code) != code; }
bool is_lower(char32_t code) { return upper_of(code) != code || code == 0xDF; }

bool is_alpha(char32_t code) {
  if (code < 0x80) return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
  return is_upper(code) || is_lower(code) || !in_ranges(kSymbols, code);
}

std::string to_upper(std::string_view text) { return rewritten(text, write_upper); }
std::string to_lower(std::string_view text) { return rewritten(text, write_lower); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = first_character(text).length;
  return to_upper(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string title(std::string_view text) {
  bool inside = false;
  return rewritten(text, [&inside](std::string& out, char32_t code, std::string_view bytes) {
    if (inside)
      write_lower(out, code, bytes);
    else
      write_upper(out, code, bytes);
    inside = is_upper(code) || is_lower(code);
  });
}

std::string swap_case(std::string_view text) {
  return rewritten(text, [](std::string& out, char32_t code, std::string_view bytes) {
    if (is_upper(code))
      write_lower(out, code, bytes);
    else
      write_upper(out, code, bytes);
  });
}

namespace {

/// Takes characters off the ends for which `goes` holds.
template <typename Goes>
std::string_view strip_where(std::string_view text, bool left, bool right, Goes goes) {
  while (left && !text.empty()) {
    const Character character = first_character(text);
    if (!goes(character.code, text.substr(0, character.length))) break;
    text.remove_prefix(character.length);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;  // back to a byte that starts a character, if the last four hold one
    while (start > 0 && text.size() - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80)
      --start;
    if (first_character(text.substr(start)).length != text.size() - start) start = text.size() - 1;
    if (!goes(first_character(text.substr(start)).code, text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

std::string_view strip_spaces(std::string_view text, bool left, bool right) {
  return strip_where(text, left, right, [](char32_t code, std::string_view) { return is_space(code); });
}

std::string_view strip_set(std::string_view text, std::string_view set, bool left, bool right) {
  std::vector<std::string_view> members = split_characters(set);
  std::sort(members.begin(), members.end());
  return strip_where(text, left, right, [&members](char32_t, std::string_view bytes) {
    return std::binary_search(members.begin(), members.end(), bytes);
  });
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    const char32_t code = character.code;
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    size_t next = at + character.length;
    if (ends) {
      if (code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(start, (keep_ends ? next : at) - start));
      start = next;
    }
    at = next;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

}  // namespace sluice::text::jinja
