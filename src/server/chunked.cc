#include "server/chunked.h"

#include <algorithm>

namespace sluice::server {

namespace {

constexpr int kMostDigits = 15;  // far more than any body may have

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; }

}  // namespace

size_t ChunkedBody::take(std::string_view bytes, std::string& body) {
  size_t at = 0;
  while (at < bytes.size() && state_ != State::Done && error_.empty()) {
    if (state_ != State::Data) {
      take_line_byte(bytes[at++]);
      continue;
    }
    const size_t count = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - at));
    body.append(bytes.substr(at, count));
    at += count;
    left_ -= count;
    if (left_ == 0) state_ = State::DataCr;
  }
  return at;
}

void ChunkedBody::take_line_byte(char byte) {
  if (++line_ > kMostLine) return fail("a chunk's line is too long");
  switch (state_) {
    case State::Size:
      if (const int digit = hex_digit(byte); digit >= 0) {
        if (++digits_ > kMostDigits) return fail("a chunk is too large");
        left_ = left_ * 16 + static_cast<uint64_t>(digit);
        return;
      }
      if (digits_ == 0) return fail("a chunk has no size");
      if (byte == '\r') {
        state_ = State::SizeEnd;
      } else if (byte == ';' || byte == ' ' || byte == '\t') {
        state_ = State::Extension;
      } else {
        fail("a chunk's size is no number");
      }
      return;
    case State::Extension:
      if (++extra_ > kMostExtra) return fail("the chunks' extensions are too long");
      if (byte == '\r') {
        state_ = State::SizeEnd;
      } else if (is_control(byte)) {
        fail("a chunk's line does not end in CR LF");
      }
      return;
    case State::SizeEnd:
      if (byte != '\n') return fail("a chunk's line does not end in CR LF");
      state_ = left_ > 0 ? State::Data : State::Trailer;
      digits_ = 0;
      line_ = 0;
      return;
    case State::DataCr:
      if (byte != '\r') return fail("a chunk is longer than its size");
      state_ = State::DataLf;
      return;
    case State::DataLf:
      if (byte != '\n') return fail("a chunk does not end in CR LF");
      state_ = State::Size;
      line_ = 0;
      return;
    case State::Trailer:
      if (++extra_ > kMostExtra) return fail("the trailers are too long");
      if (cr_) {
        if (byte != '\n') return fail("a trailer does not end in CR LF");
        if (line_ == 2) state_ = State::Done;
        cr_ = false;
        line_ = 0;
      } else if (byte == '\r') {
        cr_ = true;
      } else if (is_control(byte)) {
        fail("a trailer does not end in CR LF");
      }
      return;
    default: return;
  }
}

}  // namespace sluice::server
