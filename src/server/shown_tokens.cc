#include "server/shown_tokens.h"

#include <algorithm>
#include <utility>

namespace sluice::server {

void ShownTokens::drawn(TokenInfo token, std::string_view bytes) {
  const size_t begin = written_;
  written_ += utf8_.push(bytes).size();
  const size_t end = written_ + (utf8_.unfinished() && !bytes.empty() ? 1 : 0);
  drawn_.push_back({std::move(token), begin, end});
}

void ShownTokens::content(size_t bytes, size_t end) { pieces_.push_back({bytes, end, true}); }

std::vector<TokenInfo> ShownTokens::shown(size_t bytes) {
  std::vector<TokenInfo> out;
  while (bytes > 0 && !pieces_.empty()) {
    Piece& piece = pieces_.front();
    const size_t taken = std::min(bytes, piece.bytes);
    const size_t begin = piece.end - piece.bytes, end = begin + taken;
    while (piece.written && !drawn_.empty() && drawn_.front().begin < end) {
      if (drawn_.front().end > begin) out.push_back(std::move(drawn_.front().token));
      drawn_.pop_front();
    }
    bytes -= taken;
    piece.bytes -= taken;
    if (piece.bytes == 0) pieces_.pop_front();
  }
  return out;
}

std::vector<TokenInfo> ShownTokens::all() {
  std::vector<TokenInfo> out;
  for (Drawn& drawn : drawn_) out.push_back(std::move(drawn.token));
  drawn_.clear();
  pieces_.clear();
  return out;
}

}  // namespace sluice::server
