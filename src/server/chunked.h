// A body in chunks (RFC 9112, 7.1), read to the letter: whoever stands before the server must not be able to
// read it otherwise, and no byte may cost more than it carries. Knows bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::server {

class ChunkedBody {
 public:
  /// Bytes of all extensions and trailers together, which nobody reads; and of one chunk's line.
  static constexpr size_t kMostExtra = 16 << 10;
  static constexpr size_t kMostLine = 4 << 10;

  /// Appends what the bytes hold to `body`, and says how many of them it took: all, but for those behind the
  /// end. After an error none.
  size_t take(std::string_view bytes, std::string& body);
  bool done() const { return state_ == State::Done; }
  /// What is wrong with it; empty: nothing so far.
  std::string_view error() const { return error_; }

 private:
  enum class State { Size, Extension, SizeEnd, Data, DataCr, DataLf, Trailer, Done };
  void fail(std::string_view why) { error_ = why; }
  void take_line_byte(char byte);

  State state_ = State::Size;
  std::string_view error_;
  uint64_t left_ = 0;  ///< of the chunk
  int digits_ = 0;
  size_t line_ = 0;   ///< bytes of the line so far
  size_t extra_ = 0;  ///< bytes of extensions and trailers so far
  bool cr_ = false;   ///< the trailer's last byte was one
};

}  // namespace sluice::server
