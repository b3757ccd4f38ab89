// Texts in texts, in time that grows with both and not with their product: what is looked for comes from a
// stranger's template, too.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice::text::jinja {

/// Where `wanted` begins first; npos: nowhere.
inline size_t find_text(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return 0;
  if (wanted.size() > text.size()) return std::string_view::npos;  // of no bytes there may be no address
  const void* at = ::memmem(text.data(), text.size(), wanted.data(), wanted.size());  // two-way, in all libcs
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

/// Where it begins last.
inline size_t rfind_text(std::string_view text, std::string_view wanted) {
  constexpr size_t kShort = 32;
  if (wanted.size() <= kShort) return text.rfind(wanted);
  const std::string reversed(text.rbegin(), text.rend());
  const size_t at = find_text(reversed, std::string(wanted.rbegin(), wanted.rend()));
  return at == std::string_view::npos ? at : text.size() - at - wanted.size();
}

}  // namespace sluice::text::jinja
