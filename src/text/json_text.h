// JSON that stays text: checked, shortened and taken apart without becoming values, so that what a model
// wrote (the order of keys, long numbers) reaches its reader unchanged. Knows JSON only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text {

/// Arrays and objects inside each other, at most, in JSON from outside: what walks values may use the stack.
inline constexpr int kJsonDepth = 256;

/// ASCII white space, the only kind that counts between a model's tags.
inline constexpr std::string_view kSpace = " \t\n\v\f\r";
bool is_space(char c);

/// Without ASCII white space at its ends.
std::string_view trimmed(std::string_view text);

/// The string as JSON text, with quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

/// Whether `text`, white space of JSON around it aside, is one JSON value (RFC 8259) that fits ordinary
/// readers: nested at most kJsonDepth deep, numbers within the range of a double.
bool is_json(std::string_view text);

/// A value that is_json without the white space between its parts.
std::string json_compact(std::string_view json);

/// The string that a JSON string (with its quotes) stands for.
std::string json_unquote(std::string_view json);

/// Keys (unquoted) and values (JSON text, views into `json`) of a JSON object, in order, repeated ones too.
std::vector<std::pair<std::string, std::string_view>> json_members(std::string_view json);

/// Finds the end of a JSON object while it arrives. Outside of strings it takes any bytes that JSON has
/// there, so whoever gets an end asks is_json.
class JsonObjectScanner {
 public:
  enum class Status { More, Failed, Done };
  /// Reads the next byte; the first must be the opening brace. After Failed and Done it wants no more.
  Status read(char byte);

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace sluice::text
