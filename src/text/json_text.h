// JSON that stays text: checked and shortened without becoming values, so that what a model
// wrote (the order of keys, long numbers) reaches its reader unchanged. Knows JSON only.
#pragma once

#include <string>
#include <string_view>

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

}  // namespace sluice::text
