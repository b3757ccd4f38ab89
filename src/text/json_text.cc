// The grammar is nlohmann's to judge; its parser runs without a stack of calls. What it is lax about (a zero
// byte ends its input, a byte order mark may lead) is refused beforehand.
#include "text/json_text.h"

#include <nlohmann/json.hpp>

#include "text/exact_json.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

// Takes every event, counts the depth.
class DepthCounter : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kJsonDepth; }
  bool start_array(std::size_t) override { return ++depth_ <= kJsonDepth; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  int depth_ = 0;
};

// The end of the string that begins with a quote at `at`, past its closing quote.
size_t string_end(std::string_view json, size_t at) {
  for (++at; json[at] != '"'; ++at)
    if (json[at] == '\\') ++at;
  return at + 1;
}

}  // namespace

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

std::string json_quote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_json(std::string_view text) {
  if (text.empty() || text.front() == '\xEF' || text.find('\0') != std::string_view::npos) return false;
  DepthCounter counter;
  return read_json(text, counter);
}

std::string json_compact(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (size_t at = 0; at < json.size();) {
    const size_t end = json[at] == '"' ? string_end(json, at) : at + 1;
    if (!is_space(json[at])) out += json.substr(at, end - at);
    at = end;
  }
  return out;
}

std::string json_unquote(std::string_view json) { return parse_plain(json).get<std::string>(); }

}  // namespace sluice::text
