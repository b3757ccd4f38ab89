// Both streams look at every byte once; what they hold back is bounded by a character or a stop string.
#include "text/stream.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace sluice::text {

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  const std::string_view all = pending_;
  std::string out;
  size_t at = 0;
  while (at < all.size()) {
    const size_t valid = utf8_valid_prefix(all.substr(at));
    out += all.substr(at, valid);
    at += valid;
    if (at == all.size()) break;
    const Utf8Step step = utf8_step(all.substr(at));
    if (step.kind == Utf8Step::Incomplete) break;
    out += kReplacement;
    at += step.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  // What is held back is one beginning of a character, hence one maximal subpart.
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacement);
}

StopStream::StopStream(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Watch watch{std::move(stop), {0, 0}, 0};
    // border[n + 1] follows from running the stop string, from its second byte on, against itself.
    for (size_t n = 1; n < watch.stop.size(); ++n) {
      watch.step(watch.stop[n]);
      watch.border.push_back(watch.matched);
    }
    watch.matched = 0;
    watches_.push_back(std::move(watch));
  }
}

void StopStream::Watch::step(char byte) {
  while (matched > 0 && (matched == stop.size() || stop[matched] != byte)) matched = border[matched];
  if (stop[matched] == byte) ++matched;
}

// The longest beginning of a stop string that the text so far ends with.
std::string_view StopStream::held() const {
  std::string_view longest;
  for (const Watch& watch : watches_)
    if (watch.matched > longest.size()) longest = std::string_view(watch.stop).substr(0, watch.matched);
  return longest;
}

std::string StopStream::push(std::string_view text) {
  if (stopped_) return {};
  const std::string_view before = held();
  size_t read = 0, hidden = 0;
  while (read < text.size() && !stopped_) {
    const char byte = text[read++];
    for (Watch& watch : watches_) {
      watch.step(byte);
      if (watch.matched < watch.stop.size()) continue;
      if (watch.stop.size() > stop_.size()) stop_ = watch.stop;
      stopped_ = true;
      hidden = stop_.size();
    }
  }
  if (!stopped_) hidden = held().size();
  const size_t shown = before.size() + read - hidden;
  std::string out(before.substr(0, shown));
  out += text.substr(0, shown - out.size());
  return out;
}

std::string StopStream::finish() {
  std::string out(stopped_ ? std::string_view() : held());
  for (Watch& watch : watches_) watch.matched = 0;
  return out;
}

}  // namespace sluice::text
