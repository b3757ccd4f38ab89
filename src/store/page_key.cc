#include "store/page_key.h"

#include <openssl/sha.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace sluice::store {
namespace {

PageKey first_half_of_sha256(std::span<const unsigned char> bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(bytes.data(), bytes.size(), digest.data());
  PageKey key;
  std::copy_n(digest.begin(), key.bytes.size(), key.bytes.begin());
  return key;
}

/// Texts that begin otherwise have nothing in common, whatever follows.
enum class About : unsigned char { Root = 1, Page, State };

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string PageKey::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

std::optional<PageKey> PageKey::from_hex(std::string_view text) {
  PageKey key;
  if (text.size() != 2 * key.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    key.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return key;
}

PageKey root_key(std::string_view identity) {
  std::vector<unsigned char> text{static_cast<unsigned char>(About::Root)};
  text.insert(text.end(), identity.begin(), identity.end());
  return first_half_of_sha256(text);
}

PageKey page_key(const PageKey& before, uint64_t salt, std::span<const int32_t> tokens) {
  constexpr size_t kMost = 64, kFirst = 1 + sizeof before.bytes + sizeof salt;
  CHECK(tokens.size() <= kMost, "{} tokens", tokens.size());
  std::array<unsigned char, kFirst + kMost * sizeof(int32_t)> text{};
  text[0] = static_cast<unsigned char>(About::Page);
  std::memcpy(text.data() + 1, before.bytes.data(), sizeof before.bytes);
  std::memcpy(text.data() + 1 + sizeof before.bytes, &salt, sizeof salt);
  std::memcpy(text.data() + kFirst, tokens.data(), tokens.size_bytes());
  return first_half_of_sha256(std::span(text).first(kFirst + tokens.size_bytes()));
}

PageKey state_key(const PageKey& page) {
  std::array<unsigned char, 1 + sizeof page.bytes> text{static_cast<unsigned char>(About::State)};
  std::memcpy(text.data() + 1, page.bytes.data(), sizeof page.bytes);
  return first_half_of_sha256(text);
}

}  // namespace sluice::store
