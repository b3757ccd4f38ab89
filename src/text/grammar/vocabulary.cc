#include "text/grammar/vocabulary.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/tokenizer.h"

namespace sluice::text {
namespace {

grammar::Trie make_trie(const ConstraintVocabulary::Impl& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  std::vector<bool> single(256);
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.ends_generation.size()); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    if (bytes.empty()) continue;
    tokens.emplace_back(bytes, id);
    if (bytes.size() == 1) single[static_cast<uint8_t>(bytes[0])] = true;
  }
  // Any place of a grammar must lead on by some token: one of a single byte always fits.
  for (int c = 0x20; c < 0x7F; ++c)
    if (!single[c])
      fail("vocabulary: no token of the single character '{}', which JSON needs", static_cast<char>(c));
  return grammar::Trie(std::move(tokens));
}

}  // namespace

ConstraintVocabulary::Impl::Impl(const Tokenizer& tokenizer) : strings(trie) {
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    begins.push_back(all_bytes.size());
    const bool ends_here = tokenizer.ends_generation(id);
    ends_generation.push_back(ends_here);
    const std::string_view written = tokenizer.bytes(id, false);
    if (ends_here)
      ends.push_back(id);
    else if (written.empty())
      controls.emplace(tokenizer.bytes(id, true), id);
    else
      all_bytes += written;
  }
  begins.push_back(all_bytes.size());
  trie = make_trie(*this);
  strings.set_words(words());
  // Within a string most tokens fit: those masks are the large ones, so no request should have to wait for
  // them.
  for (const auto kind : {grammar::JsonStringKind::Any, grammar::JsonStringKind::WithoutArgValueClose})
    strings.get(kind, 1);
}

int32_t ConstraintVocabulary::Impl::control(std::string_view name) const {
  const auto found = controls.find(name);
  return found == controls.end() ? -1 : found->second;
}

ConstraintVocabulary::ConstraintVocabulary(const Tokenizer& tokenizer)
    : impl_(std::make_unique<Impl>(tokenizer)) {}
ConstraintVocabulary::~ConstraintVocabulary() = default;

}  // namespace sluice::text
