// A mark is put into the rendered text and taken out of it; all that stays is the place where it stood.
#include "text/control_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

using Names = std::vector<std::pair<std::string, int32_t>>;

constexpr std::string_view kMarkOpen = "~:", kMarkClose = ":~";
constexpr size_t kMarkDigits = 9;

/// The bytes of the first character.
size_t first_length(std::string_view text) { return utf8_step(text).length; }

// Whether a text finds the token with special tokens parsed.
bool is_parsed(const Tokenizer& tokenizer, std::string_view name, int32_t id) {
  return tokenizer.encode(name, true) == std::vector<int32_t>{id};
}

Names control_names(const Tokenizer& tokenizer) {
  Names names;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view name = tokenizer.bytes(id, true);
    if (name.empty() || !tokenizer.bytes(id, false).empty()) continue;
    if (is_parsed(tokenizer, name, id)) names.emplace_back(name, id);
  }
  return names;
}

Names tag_names(const Tokenizer& tokenizer) {
  Names names;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view name = tokenizer.bytes(id, true);
    if (name.size() < 3 || name.front() != '<' || name.back() != '>') continue;
    if (tokenizer.is_user_defined(id) && is_parsed(tokenizer, name, id)) names.emplace_back(name, id);
  }
  return names;
}

Names joined(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

Names usable(Names names) {
  std::erase_if(names,
                [](const auto& t) { return t.first.empty() || first_length(t.first) == t.first.size(); });
  std::sort(names.begin(), names.end());
  return names;
}

SpecialTokens finder_of(const Names& names) {
  return SpecialTokens(std::vector<std::pair<std::string_view, int32_t>>(names.begin(), names.end()));
}

/// The digits that a mark which opens at `at` would have: none when there is no mark.
std::string_view digits_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at + kMarkOpen.size());
  return rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size()));
}

}  // namespace

ControlTokens::ControlTokens(Names tokens)
    : tokens_(usable(std::move(tokens))), finder_(finder_of(tokens_)) {}
ControlTokens::ControlTokens(const Tokenizer& tokenizer, bool trusts_users)
    : ControlTokens(joined(control_names(tokenizer), trusts_users ? Names() : tag_names(tokenizer))) {
  for (const auto& [name, id] : tokens_)
    if (tokenizer.is_user_defined(id)) tags_.insert(id);
}

std::vector<size_t> ControlTokens::places_to_mark(std::string_view text, Author author) const {
  std::vector<size_t> places;
  if (empty()) return places;
  const auto may_stand = [&](int32_t id) { return author == Author::Model && tags_.contains(id); };
  for (size_t at = 0;;) {
    const SpecialTokens::Match match = find(text, at);
    if (match.id < 0) break;
    if (!may_stand(match.id)) places.push_back(match.begin + first_length(text.substr(match.begin)));
    at = match.begin + 1;  // names may overlap
  }
  size_t longest = 0;
  for (const auto& [name, id] : tokens_) longest = std::max(longest, name.size());
  const size_t tail = text.size() - std::min(text.size(), longest - 1);
  for (size_t at = tail; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    const auto from = std::lower_bound(tokens_.begin(), tokens_.end(), rest,
                                       [](const auto& t, auto r) { return t.first < r; });
    const auto begins = [&](const auto& t) { return std::string_view(t.first).starts_with(rest); };
    const auto to = std::find_if_not(from, tokens_.end(), begins);
    const auto name = std::find_if_not(from, to, [&](const auto& t) { return may_stand(t.second); });
    if (name == to) continue;
    const size_t whole = first_length(name->first);  // the text may end within that character
    places.push_back(std::min(at + whole, text.size()));
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

std::string PromptMarker::mark_text() const { return fmt::format("{}{}{}", kMarkOpen, number_, kMarkClose); }

void PromptMarker::avoid(std::string_view text) {
  for (size_t at = text.find(kMarkOpen); at != std::string_view::npos; at = text.find(kMarkOpen, at + 1)) {
    const std::string_view digits = digits_at(text, at);
    if (digits.empty() || digits.size() > kMarkDigits) continue;  // ours never has more
    number_ = std::max(number_, int64_t{std::stoi(std::string(digits))} + 1);
  }
}

std::string PromptMarker::mark(std::string_view text, const std::vector<size_t>& places) {
  const std::string mark = mark_text();
  std::string out;
  size_t done = 0;
  for (const size_t place : places) {
    out += text.substr(done, place - done);
    out += mark;
    done = place;
    used_ = true;
  }
  return out += text.substr(done);
}

PromptText PromptMarker::unmark(std::string_view rendered) const {
  if (!used_) return {std::string(rendered), {}};
  const std::string mark = mark_text();
  PromptText prompt;
  size_t done = 0;
  for (size_t at = rendered.find(mark); at != std::string_view::npos; at = rendered.find(mark, done)) {
    prompt.text += rendered.substr(done, at - done);
    prompt.breaks.push_back(prompt.text.size());
    done = at + mark.size();
  }
  prompt.text += rendered.substr(done);
  return prompt;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const ControlTokens& control,
                                   const PromptText& prompt) {
  const std::string_view text = prompt.text;
  std::vector<int32_t> ids;
  auto encode = [&, breaks = std::span(prompt.breaks)](size_t begin, size_t end) mutable {
    while (!breaks.empty() && breaks.front() <= begin) breaks = breaks.subspan(1);
    std::vector<size_t> inside;
    for (const size_t place : breaks) {
      if (place >= end) break;
      inside.push_back(place - begin);
    }
    tokenizer.append(text.substr(begin, end - begin), false, inside, ids);
  };
  size_t done = 0;  // what stands before is in `ids`
  std::vector<size_t> ends = prompt.breaks;
  ends.push_back(text.size());
  for (size_t at = 0; const size_t end : ends) {
    while (at < end) {
      const SpecialTokens::Match match = control.find(text.substr(0, end), at);
      at = match.begin + match.length;
      if (match.id < 0) break;
      if (match.begin > done) encode(done, match.begin);
      ids.push_back(match.id);
      done = at;
    }
    at = end;
  }
  if (done < text.size()) encode(done, text.size());
  return ids;
}

}  // namespace sluice::text
