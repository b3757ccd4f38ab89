#include "server/custom_input.h"

#include <utility>

#include "server/fields.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

constexpr std::string_view kHead = R"({"input":")";

bool is_high_surrogate(std::string_view escape) {
  return escape.starts_with("\\ud") && std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
}

/// The character or escape at the front of a string's JSON text, in bytes; 0: it is not all there.
size_t unit_of(std::string_view text) {
  if (text.front() != '\\') return 1;
  if (text.size() < 2) return 0;
  const size_t size = text[1] == 'u' ? 6 : 2;
  if (text.size() < size) return 0;
  std::string escape(text.substr(0, size));
  if (size == 6) escape[2] |= 0x20;
  if (size != 6 || !is_high_surrogate(escape)) return size;
  const std::string_view next = text.substr(size);
  if (next.size() < 2) return next.empty() || next.front() == '\\' ? 0 : size;
  if (!next.starts_with("\\u")) return size;
  return next.size() < 6 ? 0 : 2 * size;
}

}  // namespace

std::string CustomInput::push(std::string_view arguments) {
  if (closed_) return {};
  held_ += arguments;
  if (!open_) {
    if (!held_.starts_with(kHead)) return {};
    held_.erase(0, kHead.size());
    open_ = true;
  }
  size_t end = 0;
  while (end < held_.size() && held_[end] != '"') {
    const size_t unit = unit_of(std::string_view(held_).substr(end));
    if (unit == 0) break;
    end += unit;
  }
  closed_ = end < held_.size() && held_[end] == '"';
  std::string text = held_.substr(0, end);
  held_.erase(0, end);
  try {
    return text::parse_exact('"' + text + '"').get<std::string>();
  } catch (const Json::exception&) {  // no text of JSON's: as it was written
    return text;
  }
}

std::string CustomInput::finish() {
  std::string arguments = std::exchange(held_, {});
  if (open_ || kHead.starts_with(arguments)) return {};
  if (!text::is_json(arguments)) return arguments;
  const Json parsed = text::parse_exact(arguments);
  if (!parsed.is_object()) return arguments;
  const auto input = parsed.find("input");
  if (input != parsed.end() && input->is_string()) return input->get<std::string>();
  return parsed.empty() ? "" : arguments;
}

}  // namespace sluice::server
