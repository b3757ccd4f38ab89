// Contents of messages, of all APIs, as text. A model that reads text alone must not lose a conversation over
// one picture that a tool once returned: what cannot be read leaves a note in its place, or nothing and a
// line in the log. Knows kinds of parts; messages are its users' business.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace sluice::server {

/// Lines for the log: what of a request was passed over, and why. Paths and types, never texts.
using LeftOut = std::vector<std::string>;

struct ContentRule {
  bool from_user = false;           ///< a picture or a file of the user's own is an error, elsewhere a note
  std::string_view separator = {};  ///< between parts
};

struct Content {
  std::string text;
  std::string thinking;  ///< parts of reasoning
};

/// A string, or a list of parts. Throws ApiError that names the part.
Content read_content(const Json& content, const std::string& path, const ContentRule& rule,
                     LeftOut& left_out);

/// One part: adds to `out`.
void read_part(const Json& part, const std::string& path, const ContentRule& rule, Content& out,
               LeftOut& left_out);

}  // namespace sluice::server
