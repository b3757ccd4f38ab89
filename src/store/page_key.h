// By what pages of a prompt cache are known: a chained hash over a model's identity and all tokens up to the
// page's last one, so that the same key means the same bytes, whoever wrote them. Knows numbers alone.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::store {

/// The first 128 bits of a SHA-256.
struct PageKey {
  std::array<uint8_t, 16> bytes{};

  /// 32 hexadecimal digits, in lower case.
  std::string hex() const;
  static std::optional<PageKey> from_hex(std::string_view text);
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
};

struct PageKeyHash {
  size_t operator()(const PageKey& key) const {
    size_t part = 0;
    std::memcpy(&part, key.bytes.data(), sizeof part);
    return part;
  }
};

/// What stands before the first page: of a model and of a form of its cache's bytes, as text.
PageKey root_key(std::string_view identity);

/// The page that has these tokens and lies behind `before`. `salt`: among whom it is shared; others with the
/// same tokens have another key.
PageKey page_key(const PageKey& before, uint64_t salt, std::span<const int32_t> tokens);

/// The snapshot of a sequence's state behind the last row of that page.
PageKey state_key(const PageKey& page);

}  // namespace sluice::store
