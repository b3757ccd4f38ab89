#include "text/json_stream.h"

#include <cctype>
#include <cstdlib>
#include <utility>

#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

constexpr std::string_view kEscapedReplacement = "\\ufffd";

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// A number or word as JSON has it; empty: it is none. Some models write Python's words.
std::string json_token(const std::string& token) {
  if (token == "True") return "true";
  if (token == "False") return "false";
  if (token == "None") return "null";
  return is_json(ExactJson(token).text()) ? token : std::string();
}

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

JsonStream::Status JsonStream::read(char byte, std::string& out) {
  if (state_ == State::String) return read_string(byte, out);
  if (state_ == State::Escape) return read_escape(byte, out);
  constexpr std::string_view kInTokens =
      "0123456789+-.Eaeflnrstu"
      "TFNo";
  if (state_ == State::Token) {
    if (kInTokens.find(byte) != std::string_view::npos) {
      token_ += byte;
      return Status::More;
    }
    const std::string token = json_token(std::exchange(token_, {}));
    if (token.empty()) return Status::Failed;
    out += token;
    state_ = State::AfterValue;
  }
  if (is_json_space(byte)) return Status::More;
  return read_between(byte, out);
}

JsonStream::Status JsonStream::read_between(char byte, std::string& out) {
  switch (state_) {
    case State::ValueOrEnd:
      if (byte == ']') return close(byte, out);
      return begin_value(byte, out);
    case State::Value: return begin_value(byte, out);
    case State::KeyOrEnd:
      if (byte == '}') return close(byte, out);
      [[fallthrough]];
    case State::Key:
      if (byte != '"') return Status::Failed;
      is_key_ = true;
      state_ = State::String;
      break;
    case State::Colon:
      if (byte != ':') return Status::Failed;
      is_key_ = false;
      state_ = State::Value;
      break;
    case State::AfterValue:
      if (byte != ',') return close(byte, out);
      state_ = open_.back() == '}' ? State::Key : State::Value;
      break;
    default: return Status::Failed;
  }
  out += byte;
  return Status::More;
}

JsonStream::Status JsonStream::begin_value(char byte, std::string& out) {
  if (byte == '{' || byte == '[') {
    if (open_.size() >= kJsonDepth) return Status::Failed;
    open_ += byte == '{' ? '}' : ']';
    state_ = byte == '{' ? State::KeyOrEnd : State::ValueOrEnd;
  } else if (byte == '"') {
    state_ = State::String;
  } else if (!open_.empty() && std::string_view("-0123456789tfnTFN").find(byte) != std::string_view::npos) {
    token_ = byte;
    state_ = State::Token;
    return Status::More;
  } else {
    return Status::Failed;
  }
  out += byte;
  return Status::More;
}

JsonStream::Status JsonStream::close(char bracket, std::string& out) {
  if (open_.empty() || open_.back() != bracket) return Status::Failed;
  open_.pop_back();
  out += bracket;
  state_ = State::AfterValue;
  return open_.empty() ? Status::Done : Status::More;
}

JsonStream::Status JsonStream::read_string(char byte, std::string& out) {
  if (byte == '\\') {
    token_ = byte;
    state_ = State::Escape;
    return Status::More;
  }
  drop_surrogate(out);
  if (byte != '"') {
    if (static_cast<unsigned char>(byte) < 0x20) {
      const std::string quoted = json_quote(std::string_view(&byte, 1));
      out += std::string_view(quoted).substr(1, quoted.size() - 2);
    } else {
      out += byte;
    }
    return Status::More;
  }
  out += byte;
  if (open_.empty()) return Status::Done;
  state_ = is_key_ ? State::Colon : State::AfterValue;
  return Status::More;
}

JsonStream::Status JsonStream::read_escape(char byte, std::string& out) {
  token_ += byte;
  if (token_.size() == 2) {
    if (byte == 'u') return Status::More;
    if (std::string_view("\"\\/bfnrt").find(byte) == std::string_view::npos) return end_no_escape(out);
  } else if (!is_hex(byte)) {
    return end_no_escape(out);
  } else if (token_.size() < 6) {
    return Status::More;
  }
  end_escape(out);
  token_.clear();
  state_ = State::String;
  return Status::More;
}

void JsonStream::end_escape(std::string& out) {
  const long code = token_.size() == 6 ? std::strtol(token_.c_str() + 2, nullptr, 16) : 0;
  const bool low = code >= 0xDC00 && code < 0xE000;
  if (low && !surrogate_.empty()) {
    out += surrogate_ + token_;
    surrogate_.clear();
    return;
  }
  drop_surrogate(out);
  if (code >= 0xD800 && code < 0xDC00)
    surrogate_ = token_;
  else
    out += low ? kEscapedReplacement : std::string_view(token_);
}

// What is no escape was meant as it stands there (a path, a regular expression, a formula); Python's \' is a
// quote.
JsonStream::Status JsonStream::end_no_escape(std::string& out) {
  const char last = token_.back();
  token_.pop_back();
  drop_surrogate(out);
  if (token_.size() > 1 || last != '\'') out += "\\" + token_;
  token_.clear();
  state_ = State::String;
  return read_string(last, out);
}

void JsonStream::drop_surrogate(std::string& out) {
  if (surrogate_.empty()) return;
  out += kEscapedReplacement;
  surrogate_.clear();
}

std::string json_closed(std::string_view cut) {
  std::string open;
  size_t safe = 0;  // up to here members and items are whole
  bool in_string = false, in_key = false, wants_key = false;
  for (size_t at = 0; at < cut.size(); ++at) {
    const char c = cut[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c != '"') continue;
      in_string = false;
      if (!in_key) safe = at + 1;
    } else if (c == '"') {
      in_string = true;
      in_key = wants_key;
    } else if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      wants_key = c == '{';
      safe = at + 1;
    } else if (c == '}' || c == ']') {
      if (!open.empty()) open.pop_back();
      wants_key = false;
      safe = at + 1;
    } else if (c == ',') {
      wants_key = !open.empty() && open.back() == '}';
      safe = at;
    } else if (c == ':') {
      wants_key = false;
    }
  }
  // Numbers and words come whole.
  if (!in_string && !cut.empty() && std::isalnum(static_cast<unsigned char>(cut.back())) != 0)
    safe = cut.size();
  const bool keeps_all = in_string && !in_key;
  std::string out(cut.substr(0, keeps_all ? cut.size() : safe));
  if (keeps_all) out += '"';
  if (out.empty()) return "{}";
  return out.append(open.rbegin(), open.rend());
}

}  // namespace sluice::text
