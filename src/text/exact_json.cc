#include "text/exact_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>

#include "base/interruption.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

/// A text's characters for a parser that reads them one by one, however long a single value is: now and then
/// it looks whether anybody still waits for it (base/interruption.h). Every parser reads this: one for each
/// kind of text would be compiled for each.
class WatchedText {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;
    Iterator() = default;
    explicit Iterator(const char* at) : at_(at) {}
    reference operator*() const { return *at_; }
    Iterator& operator++() {
      if ((reinterpret_cast<uintptr_t>(++at_) & 0xFFFF) == 0) Interruptible::look();
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const char* at_ = nullptr;
  };
  /// `text` outlives it.
  explicit WatchedText(std::string_view text) : text_(text) {}
  Iterator begin() const { return Iterator(text_.data()); }
  Iterator end() const { return Iterator(text_.data() + text_.size()); }

 private:
  std::string_view text_;
};

constexpr uint64_t kNumberSubtype = 'N';
constexpr std::string_view kDigits = "0123456789";

/// What marks a string as a number's text. Nobody outside can know it; it is short, so that a text of many
/// such numbers does not grow much.
const std::string& number_mark() {
  static const std::string mark = [] {
    std::random_device device;
    std::string text = "\x7F";
    for (int i = 0; i < 14; ++i) text += static_cast<char>('A' + device() % 26);
    return text;
  }();
  return mark;
}

bool holds_number_text(const Json& value) {
  if (!value.is_structured()) return number_text(value).has_value();
  return std::any_of(value.begin(), value.end(), holds_number_text);
}

/// The digits that count, without zeros at the ends: of "-0.0120e7" 12.
std::string significant(std::string_view number) {
  std::string digits;
  for (const char c : number.substr(0, number.find_first_of("eE")))
    if (kDigits.find(c) != std::string_view::npos) digits += c;
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return "";
  return digits.substr(first, digits.find_last_not_of('0') + 1 - first);
}

/// Whether a number's value survives in what nlohmann makes of it.
bool fits(std::string_view number) {
  if (number.size() <= 15 && number.find_first_of("eE") == std::string_view::npos) return true;
  if (number.find_first_of(".eE") == std::string_view::npos) {
    int64_t value = 0;
    return std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc();
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (end != number.data() + number.size()) return true;  // no number: the parser will say so
  if (error == std::errc::result_out_of_range) return significant(number).empty();
  char shortest[64];
  const char* last =
      std::to_chars(shortest, shortest + sizeof shortest, value, std::chars_format::scientific).ptr;
  return significant({shortest, static_cast<size_t>(last - shortest)}) == significant(number);
}

bool is_escape(std::string_view text, size_t at, char low, char high) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return false;
  const char d = text[at + 2], next = static_cast<char>(text[at + 3] | 0x20);
  return (d == 'd' || d == 'D') && next >= low && next <= high &&
         text.substr(at + 4, 2).find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}
// The high half is \uD8.. to \uDB.., the low one \uDC.. to \uDF..; a digit's bit 0x20 is set anyway.
bool is_high(std::string_view text, size_t at) {
  return is_escape(text, at, '8', '9') || is_escape(text, at, 'a', 'b');
}
bool is_low(std::string_view text, size_t at) { return is_escape(text, at, 'c', 'f'); }

void write(const Json& value, bool spaced, std::string& out) {
  if (const auto digits = number_text(value)) {
    out += *digits;
    return;
  }
  if (!value.is_structured()) {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += value.is_array() ? '[' : '{';
  bool first = true;
  const auto separate = [&] {
    if (!std::exchange(first, false)) out += spaced ? ", " : ",";
  };
  if (value.is_array()) {
    for (const Json& item : value) {
      separate();
      write(item, spaced, out);
    }
  } else {
    for (const auto& [key, item] : value.items()) {
      separate();
      out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
      out += spaced ? ": " : ":";
      write(item, spaced, out);
    }
  }
  out += value.is_array() ? ']' : '}';
}

}  // namespace

bool read_json(std::string_view text, nlohmann::json_sax<Json>& events) {
  return Json::sax_parse(WatchedText(text), &events);
}

Json parse_plain(std::string_view text) { return Json::parse(WatchedText(text)); }

ExactJson::ExactJson(std::string_view text) : original_(text) {
  size_t copied = 0;  // of the original, in mended_
  const auto replace = [&](size_t begin, size_t end, std::string_view by) {
    if (!mended_) mended_.emplace();
    mended_->append(text.substr(copied, begin - copied)).append(by);
    copied = end;
  };
  constexpr size_t kLook = 64 << 10;  // bytes
  size_t looked = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"';) {
        if (at > looked + kLook) Interruptible::look(), looked = at;
        if (text[at] != '\\') {
          ++at;
        } else if (is_high(text, at) && is_low(text, at + 6)) {
          at += 12;
        } else if (is_high(text, at) || is_low(text, at)) {
          replace(at, at + 6, "\\ufffd");
          at += 6;
        } else {
          at += 2;
        }
      }
      ++at;
    } else if (c == '-' || kDigits.find(c) != std::string_view::npos) {
      const size_t end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
      const std::string_view number = text.substr(at, end - at);
      // Only what is a number is marked: all else is for the parser to refuse.
      if (!fits(number) &&
          Json::accept(WatchedText("[" + std::string(number.substr(0, number.find_first_of("eE"))) + "]"))) {
        replace(at, end, fmt::format("\"{}{}\"", number_mark(), number));
        has_numbers_ = true;
      }
      at = end;
    } else {
      ++at;
    }
  }
  if (mended_) mended_->append(text.substr(copied));
}

Json ExactJson::value() const {
  if (!has_numbers_) return parse_plain(text());
  return Json::parse(WatchedText(text()), [](int, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::value || !parsed.is_string()) return true;
    const auto& string = parsed.get_ref<const std::string&>();
    if (!string.starts_with(number_mark())) return true;
    const std::string digits = string.substr(number_mark().size());
    parsed = Json::binary(std::vector<uint8_t>(digits.begin(), digits.end()), kNumberSubtype);
    return true;
  });
}

Json parse_exact(std::string_view text) { return ExactJson(text).value(); }

std::optional<std::string_view> number_text(const Json& value) {
  if (!value.is_binary() || value.get_binary().subtype() != kNumberSubtype) return {};
  const auto& bytes = value.get_binary();
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Json with_nearest_numbers(Json value) {
  if (const auto digits = number_text(value)) {
    Json nearest = Json::parse(WatchedText(*digits), nullptr,
                               false);  // an integer of 64 bits without a sign, or a double
    if (!nearest.is_discarded()) return nearest;
    return (digits->front() == '-' ? -1 : 1) * std::numeric_limits<double>::max();
  }
  for (Json& item : value)
    if (item.is_structured() || item.is_binary()) item = with_nearest_numbers(std::move(item));
  return value;
}

std::string dump_exact(const Json& value, bool spaced) {
  if (!spaced && !holds_number_text(value)) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  write(value, spaced, out);
  return out;
}

}  // namespace sluice::text
