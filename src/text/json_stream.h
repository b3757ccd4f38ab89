// JSON read byte by byte: checked as it comes and handed on as soon as it is certain, without the white space
// between its parts. Knows JSON only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// One JSON object, array or string (RFC 8259), nested at most kJsonDepth deep. What many models get wrong is
/// put right: control characters become escapes, halves of surrogate pairs U+FFFD, a backslash before what it
/// cannot escape is a backslash, True, False and None are JSON's words.
class JsonStream {
 public:
  enum class Status : uint8_t { More, Failed, Done };
  /// Reads the next byte and appends to `out` what is certain now: whole escapes, whole numbers and words.
  /// After Failed and Done it wants no more.
  Status read(char byte, std::string& out);
  /// Arrays and objects that are open.
  size_t depth() const { return open_.size(); }
  /// Inside a string, its quotes aside.
  bool in_string() const { return state_ == State::String || state_ == State::Escape; }
  /// What was read last belongs to an object's key; its colon has not come.
  bool at_key() const { return is_key_; }

 private:
  enum class State : uint8_t { Value, ValueOrEnd, KeyOrEnd, Key, Colon, AfterValue, String, Escape, Token };

  Status read_string(char byte, std::string& out);
  Status read_escape(char byte, std::string& out);
  Status read_between(char byte, std::string& out);
  Status begin_value(char byte, std::string& out);
  Status close(char bracket, std::string& out);
  void end_escape(std::string& out);
  Status end_no_escape(std::string& out);
  // A high surrogate that has waited for its low one in vain.
  void drop_surrogate(std::string& out);

  State state_ = State::Value;
  bool is_key_ = false;
  std::string open_;       ///< the brackets that will close what is open, innermost last
  std::string token_;      ///< an escape, a number or a word that is not whole yet
  std::string surrogate_;  ///< an escape that needs its other half
};

/// A JSON object whose end is missing, as JsonStream hands it on, brought to an end: a string value is kept
/// as far as it came, a member without a value is not.
std::string json_closed(std::string_view cut);

}  // namespace sluice::text
