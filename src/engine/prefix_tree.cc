#include "engine/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::engine {

using program::kPageRows;

bool PrefixTree::before(const Key& a, const Key& b) {
  if (a.group != b.group) return a.group < b.group;
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
}

// How many tokens both begin with; none of another group's.
int64_t PrefixTree::common(const Key& a, const Key& b) {
  if (a.group != b.group) return 0;
  return std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first -
         a.tokens.begin();
}

// The first of the children that does not come before this one.
size_t PrefixTree::place(const Node& parent, const Key& key) const {
  const auto& children = parent.children;
  const auto at =
      std::lower_bound(children.begin(), children.end(), key,
                       [this](int32_t page, const Key& other) { return before(node(page).key(), other); });
  return static_cast<size_t>(at - children.begin());
}

// The child of exactly this key, or kRoot.
int32_t PrefixTree::child(int32_t parent, const Key& key) const {
  const auto& children = node(parent).children;
  const size_t at = place(node(parent), key);
  if (at == children.size()) return kRoot;
  return before(key, node(children[at]).key()) ? kRoot : children[at];
}

bool PrefixTree::is_free_leaf(int32_t page) const {
  return page != kRoot && node(page).holds == 0 && node(page).children.empty();
}

void PrefixTree::start_use(int32_t page) {
  Node& n = node(page);
  if (n.holds++ > 0) return;
  --unused_;
  if (n.children.empty()) oldest_.erase({n.released, page});
}

void PrefixTree::end_use(int32_t page) {
  Node& n = node(page);
  CHECK(n.holds > 0, "page {}", page);
  n.released = clock_;
  if (--n.holds > 0) return;
  ++unused_;
  if (n.children.empty()) oldest_.insert({n.released, page});
}

void PrefixTree::insert(int32_t parent, const Key& key, int32_t page) {
  if (page + 1 >= std::ssize(nodes_)) nodes_.resize(static_cast<size_t>(page) + 2);
  Node& n = node(page);
  CHECK(n.rows == 0 && !key.tokens.empty() && key.tokens.size() <= n.tokens.size(), "page {}", page);
  if (is_free_leaf(parent)) oldest_.erase({node(parent).released, parent});
  auto& children = node(parent).children;
  children.insert(children.begin() + static_cast<int64_t>(place(node(parent), key)), page);
  std::ranges::copy(key.tokens, n.tokens.begin());
  n.rows = static_cast<int32_t>(key.tokens.size());
  n.group = key.group;
  n.parent = parent;
  n.released = clock_;
  oldest_.insert({n.released, page});
  ++size_;
  ++unused_;
}

void PrefixTree::remove(int32_t page) {
  Node& n = node(page);
  CHECK(n.rows > 0 && is_free_leaf(page), "page {}", page);
  oldest_.erase({n.released, page});
  auto& siblings = node(n.parent).children;
  siblings.erase(siblings.begin() + static_cast<int64_t>(place(node(n.parent), n.key())));
  if (is_free_leaf(n.parent)) oldest_.insert({node(n.parent).released, n.parent});
  n.rows = 0;
  n.parent = kRoot;
  --size_;
  --unused_;
}

int64_t PrefixTree::unused_of(std::span<const int32_t> chain) const {
  return std::ranges::count_if(chain, [this](int32_t page) { return node(page).holds == 0; });
}

void PrefixTree::find(std::span<const int32_t> tokens, std::vector<int32_t>& chain, uint64_t group) const {
  int32_t at = kRoot;
  for (; tokens.size() >= kPageRows; tokens = tokens.subspan(kPageRows)) {
    at = child(at, {group, tokens.first(kPageRows)});
    if (at == kRoot) return;
    chain.push_back(at);
  }
}

void PrefixTree::hold(int32_t page) {
  for (; page != kRoot; page = node(page).parent) start_use(page);
}

void PrefixTree::release(int32_t page) {
  ++clock_;
  for (; page != kRoot; page = node(page).parent) end_use(page);
}

int32_t PrefixTree::extend(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group) {
  CHECK(tokens.size() == kPageRows && (parent == kRoot || node(parent).holds > 0), "{} tokens",
        tokens.size());
  int32_t at = child(parent, {group, tokens});
  if (at == kRoot) {
    insert(parent, {group, tokens}, page);
    at = page;
  }
  start_use(at);  // and those above count it already: they counted the hold on the parent
  return at;
}

int32_t PrefixTree::add_leaf(int32_t parent, std::span<const int32_t> tokens, int32_t page, uint64_t group) {
  CHECK(!tokens.empty() && tokens.size() < kPageRows, "{} tokens", tokens.size());
  const auto& children = node(parent).children;
  const Key key{group, tokens};
  const size_t at = place(node(parent), key);
  if (at < children.size() && common(key, node(children[at]).key()) == std::ssize(tokens)) return page;
  int32_t spare = kRoot;
  if (at > 0) {
    const int32_t left = children[at - 1];
    if (is_free_leaf(left) && common(key, node(left).key()) == node(left).rows) spare = left;
  }
  ++clock_;
  insert(parent, key, page);
  if (spare != kRoot) remove(spare);
  return spare;
}

std::optional<PrefixTree::Taken> PrefixTree::take_leaf(int32_t parent, std::span<const int32_t> tokens,
                                                       uint64_t group) {
  const auto& children = node(parent).children;
  const Key key{group, tokens};
  const size_t at = place(node(parent), key);
  // In this order, whoever shares most with these stands beside their place.
  Taken best{kRoot, 0};
  for (size_t i = at - (at > 0); i < std::min(children.size(), at + 1); ++i) {
    const int64_t rows = common(key, node(children[i]).key());
    const bool worth_it = rows == std::ssize(tokens) || 2 * rows >= node(children[i]).rows;
    if (rows > best.rows && is_free_leaf(children[i]) && worth_it) best = {children[i], rows};
  }
  if (best.page == kRoot) return std::nullopt;
  remove(best.page);
  return best;
}

int32_t PrefixTree::evict() {
  if (oldest_.empty()) return kRoot;
  const int32_t page = oldest_.begin()->second;
  remove(page);
  return page;
}

void PrefixTree::check(std::span<const int32_t> held) const {
  std::vector<int32_t> holds(nodes_.size(), 0);
  for (int32_t page : held)
    for (; page != kRoot; page = node(page).parent) ++holds[static_cast<size_t>(int64_t{page} + 1)];
  int64_t in_tree = 0, without_holds = 0, leaves = 0, links = std::ssize(node(kRoot).children);
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    const auto page = static_cast<int32_t>(i) - 1;
    CHECK(n.holds == holds[i], "page {}: {} holds, expected {}", page, n.holds, holds[i]);
    if (n.rows == 0) {
      CHECK(n.children.empty() && n.holds == 0, "page {}", page);
      continue;
    }
    ++in_tree;
    links += std::ssize(n.children);
    CHECK(n.rows == kPageRows || n.children.empty(), "page {}", page);
    CHECK(n.parent == kRoot || node(n.parent).rows == kPageRows, "page {}", page);
    CHECK(std::ranges::count(node(n.parent).children, page) == 1, "page {}", page);
    CHECK(std::ranges::is_sorted(
              n.children, [this](int32_t a, int32_t b) { return before(node(a).key(), node(b).key()); }),
          "page {}", page);
    without_holds += n.holds == 0;
    if (!is_free_leaf(page)) continue;
    ++leaves;
    CHECK(oldest_.contains({n.released, page}), "page {}", page);
  }
  CHECK(links == in_tree && in_tree == size_, "{} links, {} pages", links, in_tree);
  CHECK(without_holds == unused_ && leaves == std::ssize(oldest_), "{} unused, {} leaves", without_holds,
        leaves);
}

}  // namespace sluice::engine
