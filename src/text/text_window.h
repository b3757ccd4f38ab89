// The part of a growing text that is still undecided, addressed by positions in the whole text; and the
// places where a tag stands in it. Both cost a constant per byte of the text, however it is chunked.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

class TextWindow {
 public:
  void append(std::string_view text) { bytes_ += text; }
  /// Forgets what stands before `position`.
  void drop_before(size_t position) {
    dropped_ = position - base_;
    // Moving what is left only when it is the smaller part pays for the move.
    if (dropped_ * 2 <= bytes_.size()) return;
    bytes_.erase(0, dropped_);
    base_ = position;
    dropped_ = 0;
  }
  size_t end() const { return base_ + bytes_.size(); }
  char at(size_t position) const { return bytes_[position - base_]; }
  /// The bytes from `begin` up to `end`.
  std::string_view view(size_t begin, size_t end) const {
    return std::string_view(bytes_).substr(begin - base_, end - begin);
  }

 private:
  std::string bytes_;
  size_t base_ = 0;     ///< the position of the first byte in bytes_
  size_t dropped_ = 0;  ///< bytes at the front that nobody wants any more
};

/// What a text that ends says about a tag at its front.
enum class TagMatch { None, Partial, Full };
inline TagMatch match_tag(std::string_view text, std::string_view tag) {
  if (tag.empty()) return TagMatch::None;
  if (text.starts_with(tag)) return TagMatch::Full;
  return tag.starts_with(text) ? TagMatch::Partial : TagMatch::None;
}

/// All places of one tag in a window from some position on, found once each.
class TagPlaces {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  explicit TagPlaces(std::string_view tag) : tag_(tag) {}

  /// From now on no place before `position` will be asked for.
  void forget_before(size_t position) {
    if (found_.empty() || found_.back() < position) {
      found_.clear();
      if (scanned_ < position) scanned_ = position;
    }
  }
  /// The first place at or after `position` where the whole tag stands before `limit`, or kNone.
  size_t first_from(size_t position, size_t limit, const TextWindow& text);

 private:
  void scan_to(size_t position, const TextWindow& text);

  std::string_view tag_;
  std::vector<size_t> found_;  ///< ascending
  size_t scanned_ = 0;         ///< no place before this one is unknown
};

}  // namespace sluice::text
