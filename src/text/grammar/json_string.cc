#include "text/grammar/json_string.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::text::grammar {
namespace {

// Adds edges to a string's automaton; all its states accept nothing but the last.
class StringBuilder {
 public:
  explicit StringBuilder(std::string_view forbidden) : forbidden_(forbidden) {
    add_state();  // before the opening quote
    for (size_t i = 0; i < std::max<size_t>(forbidden.size(), 1); ++i) add_state();
    edge(0, '"', '"', kBody);
    add_escapes();
    add_tails();
    for (size_t i = 0; i < std::max<size_t>(forbidden.size(), 1); ++i) add_body(i);
    // The state behind the closing quote comes last.
    for (std::vector<Edge>& edges : states_) {
      std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
        return std::pair(a.counts, a.first) < std::pair(b.counts, b.first);
      });
      dfa_.add_state(false);
      for (const Edge& edge : edges)
        dfa_.add_edge(edge.first, edge.last,
                      edge.target == kEnd ? static_cast<uint32_t>(states_.size()) : edge.target, edge.counts);
    }
    dfa_.add_state(true);
  }
  Dfa take() { return std::move(dfa_); }

 private:
  static constexpr uint32_t kBody = 1, kEnd = UINT32_MAX;

  uint32_t add_state() {
    states_.emplace_back();
    return static_cast<uint32_t>(states_.size() - 1);
  }
  void edge(uint32_t from, int first, int last, uint32_t to, bool counts = false) {
    states_[from].push_back({static_cast<Symbol>(first), static_cast<Symbol>(last), to, counts});
  }
  void hex(uint32_t from, uint32_t to) {
    edge(from, '0', '9', to);
    edge(from, 'A', 'F', to);
    edge(from, 'a', 'f', to);
  }

  // \" \\ \/ \b \f \n \r \t, and \u with four digits: a surrogate is followed by its other half.
  void add_escapes() {
    escape_ = add_state();
    for (const char c : std::string_view("\"\\/bfnrt")) edge(escape_, c, c, kBody);
    const uint32_t first = add_state(), three = add_state(), two = add_state(), one = add_state();
    edge(escape_, 'u', 'u', first);
    edge(first, '0', '9', three);
    for (const Symbol base : {'A', 'a'}) {
      edge(first, base, base + 2, three);      // A to C
      edge(first, base + 4, base + 5, three);  // E and F
    }
    hex(three, two);
    hex(two, one);
    hex(one, kBody);
    const uint32_t after_d = add_state(), high2 = add_state(), high1 = add_state(), high0 = add_state();
    for (const Symbol d : {'D', 'd'}) edge(first, d, d, after_d);
    edge(after_d, '0', '7', two);
    edge(after_d, '8', '9', high2);
    for (const Symbol base : {'A', 'a'}) edge(after_d, base, base + 1, high2);
    hex(high2, high1);
    hex(high1, high0);
    const uint32_t u = add_state(), d = add_state(), low = add_state();
    edge(high0, '\\', '\\', u);
    edge(u, 'u', 'u', d);
    for (const Symbol c : {'D', 'd'}) edge(d, c, c, low);
    for (const Symbol base : {'A', 'a'}) edge(low, base + 2, base + 5, two);  // C to F
  }

  // Bytes behind the first of a character (Unicode, table 3-7).
  void add_tails() {
    for (uint32_t& state : tail_) state = add_state();
    edge(tail_[0], 0x80, 0xBF, kBody);
    edge(tail_[1], 0x80, 0xBF, tail_[0]);
    edge(tail_[2], 0x80, 0xBF, tail_[1]);
    edge(tail_[3], 0xA0, 0xBF, tail_[0]);  // behind E0
    edge(tail_[4], 0x80, 0x9F, tail_[0]);  // behind ED
    edge(tail_[5], 0x90, 0xBF, tail_[1]);  // behind F0
    edge(tail_[6], 0x80, 0x8F, tail_[1]);  // behind F4
  }

  // The state in which the text ends with the first `matched` bytes of what is forbidden.
  void add_body(size_t matched) {
    const auto at = static_cast<uint32_t>(kBody + matched);
    for (int c = 0x20; c < 0x80; ++c) {
      if (c == '"' || c == '\\') continue;
      const size_t next = advance(matched, static_cast<char>(c));
      if (forbidden_.empty() || next < forbidden_.size())
        edge(at, c, c, static_cast<uint32_t>(kBody + next), true);
    }
    edge(at, '"', '"', kEnd);
    edge(at, '\\', '\\', escape_, true);
    edge(at, 0xC2, 0xDF, tail_[0], true);
    edge(at, 0xE0, 0xE0, tail_[3], true);
    edge(at, 0xE1, 0xEC, tail_[1], true);
    edge(at, 0xED, 0xED, tail_[4], true);
    edge(at, 0xEE, 0xEF, tail_[1], true);
    edge(at, 0xF0, 0xF0, tail_[5], true);
    edge(at, 0xF1, 0xF3, tail_[2], true);
    edge(at, 0xF4, 0xF4, tail_[6], true);
  }

  // How much of what is forbidden the text ends with after one more byte.
  size_t advance(size_t matched, char c) const {
    if (forbidden_.empty()) return 0;
    std::string text(forbidden_.substr(0, matched));
    text += c;
    while (!forbidden_.starts_with(text)) text.erase(0, 1);
    return text.size();
  }

  std::string_view forbidden_;
  std::vector<std::vector<Edge>> states_;
  Dfa dfa_;
  uint32_t escape_ = 0;
  std::array<uint32_t, 7> tail_{};
};

}  // namespace

std::string_view forbidden_in(JsonStringKind kind) {
  constexpr std::array<std::string_view, kJsonStringKinds> kForbidden = {"", "</arg_value>", "</parameter>"};
  return kForbidden[static_cast<size_t>(kind)];
}

JsonStringKind json_string_kind_without(std::string_view tag) {
  for (int kind = 0; kind < kJsonStringKinds; ++kind)
    if (forbidden_in(static_cast<JsonStringKind>(kind)) == tag) return static_cast<JsonStringKind>(kind);
  CHECK(false, "no kind of strings is without {}", tag);
  return JsonStringKind::Any;
}

const Dfa& json_string(JsonStringKind kind) {
  static const auto kAll = [] {
    std::array<Dfa, kJsonStringKinds> all;
    for (int one = 0; one < kJsonStringKinds; ++one)
      all[one] = StringBuilder(forbidden_in(static_cast<JsonStringKind>(one))).take();
    return all;
  }();
  return kAll[static_cast<size_t>(kind)];
}

StringMasks::StringMasks(const Trie& trie) : trie_(trie) {
  for (int kind = 0; kind < kJsonStringKinds; ++kind)
    masks_[kind].resize(json_string(static_cast<JsonStringKind>(kind)).states.size());
}

const StringMask& StringMasks::get(JsonStringKind kind, uint32_t state) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<StringMask>& mask = masks_[static_cast<int>(kind)][state];
  if (!mask) mask = std::make_unique<StringMask>(find(json_string(kind), state));
  return *mask;
}

StringMask StringMasks::find(const Dfa& dfa, uint32_t state) const {
  constexpr uint32_t kNowhere = UINT32_MAX;
  struct Step {
    uint32_t to = kNowhere;
    bool counts = false;
  };
  std::vector<std::array<Step, 256>> table(dfa.states.size());
  for (size_t i = 0; i < dfa.states.size(); ++i)
    for (const Edge& edge : dfa.edges_of(static_cast<uint32_t>(i)))
      for (int c = edge.first; c <= edge.last; ++c) table[i][c] = {edge.target, edge.counts};

  StringMask mask;
  struct Point {
    uint32_t state, characters;
  };
  std::vector<Point> path(trie_.longest() + 1);
  path[0] = {state, 0};
  const auto end = static_cast<uint32_t>(dfa.states.size() - 1);
  for (uint32_t at = 0; at < trie_.size();) {
    const Trie::Node& node = trie_.node(at);
    const Point from = path[node.depth - 1];
    const Step step = table[from.state][node.byte];
    if (step.to == kNowhere) {
      at = node.end;
      continue;
    }
    if (step.to == end) {
      mask.exits.push_back({at, from.characters});
      at = node.end;
      continue;
    }
    const uint32_t characters = from.characters + (step.counts ? 1 : 0);
    path[node.depth] = {step.to, characters};
    for (const int32_t token : trie_.tokens_at(at)) mask.inside.emplace_back(characters, token);
    ++at;
  }
  std::sort(mask.inside.begin(), mask.inside.end());
  mask.most = mask.inside.empty() ? 0 : mask.inside.back().first;
  mask.all.assign(words_, 0);
  uint32_t limit = 1;
  for (const auto& [characters, token] : mask.inside) {
    for (; characters > limit; limit *= 2) mask.up_to.push_back(mask.all);
    mask.all[token / 32] |= 1u << (token % 32);
  }
  return mask;
}

}  // namespace sluice::text::grammar
