// Each byte is looked at once for each tag, give or take a tag's length.
#include "text/text_window.h"

#include <algorithm>

namespace sluice::text {

size_t TagPlaces::first_from(size_t position, size_t limit, const TextWindow& text) {
  if (found_.empty() || found_.back() < position) scan_to(position, text);
  const auto found = std::lower_bound(found_.begin(), found_.end(), position);
  return found == found_.end() || *found + tag_.size() > limit ? kNone : *found;
}

// Looks for places until one is at or after `position` or the text ends.
void TagPlaces::scan_to(size_t position, const TextWindow& text) {
  const size_t end = text.end();
  while (scanned_ + tag_.size() <= end) {
    const size_t found = text.view(scanned_, end).find(tag_);
    if (found == std::string_view::npos) {
      scanned_ = end - tag_.size() + 1;
      return;
    }
    found_.push_back(scanned_ + found);
    scanned_ = found_.back() + 1;
    if (found_.back() >= position) return;
  }
}

}  // namespace sluice::text
