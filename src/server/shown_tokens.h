// Which of an answer's tokens wrote what its reader sees: log-probabilities are told of these and of no
// others. Knows tokens by their bytes, and pieces of the answer by where they stand in all that was written.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "text/stream.h"

namespace sluice::server {

struct TokenInfo {
  int32_t token;
  std::vector<engine::TokenLogprob> logprobs;  ///< its own first
};

class ShownTokens {
 public:
  /// A token was drawn that wrote these bytes.
  void drawn(TokenInfo token, std::string_view bytes);
  /// The next bytes of the content are text that ends at `end` of what the tokens wrote.
  void content(size_t bytes, size_t end);
  /// And those that no token wrote.
  void inserted(size_t bytes) { pieces_.push_back({bytes, 0, false}); }
  /// The next so many bytes of the content are shown: hands out the tokens that wrote any of them, in their
  /// order, each one once. What was drawn before them wrote none.
  std::vector<TokenInfo> shown(size_t bytes);
  /// Hands out all there are.
  std::vector<TokenInfo> all();

 private:
  struct Drawn {
    TokenInfo token;
    size_t begin, end;  ///< of its text; a character that several wrote is each one's
  };
  struct Piece {
    size_t bytes, end;
    bool written;  ///< by tokens
  };
  text::Utf8Stream utf8_;
  size_t written_ = 0;  ///< bytes of whole characters
  std::deque<Drawn> drawn_;
  std::deque<Piece> pieces_;  ///< not shown yet
};

}  // namespace sluice::server
