#include "text/grammar/unicode_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <map>
#include <memory>
#include <mutex>

namespace sluice::text::grammar {
namespace {

// Runs over a text of all characters, one after the other: where the property holds is a range.
std::optional<CharacterSet> find_set(const std::string& name) {
  const std::string pattern = "\\p{" + name + "}+";
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                    &error, &at, nullptr),
      pcre2_code_free);
  if (!code) return std::nullopt;
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  CharacterSet::Ranges ranges;
  constexpr uint32_t kPiece = 0x800;  // surrogates are one piece
  for (uint32_t first = 0; first <= kLastCharacter; first += kPiece) {
    if (first == kFirstSurrogate) continue;
    std::string text;
    std::vector<uint32_t> behind;  // by byte: the character that begins there
    for (uint32_t c = first; c < first + kPiece; ++c) {
      append_utf8(text, c);
      behind.resize(text.size(), c);
    }
    behind.push_back(first + kPiece);
    for (size_t from = 0; from < text.size();) {
      const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                    PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (found < 0) break;
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
      ranges.emplace_back(behind[ends[0]], behind[ends[1]] - 1);
      from = ends[1];
    }
  }
  return CharacterSet(std::move(ranges));
}

}  // namespace

std::optional<CharacterSet> unicode_set(const std::string& name) {
  constexpr size_t kMostKept = 100;
  static std::mutex mutex;
  static std::map<std::string, std::optional<CharacterSet>> known;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(name); found != known.end()) return found->second;
  }
  std::optional<CharacterSet> set = find_set(name);
  const std::lock_guard lock(mutex);
  if (known.size() < kMostKept) known.emplace(name, set);
  return set;
}

}  // namespace sluice::text::grammar
