// Tools of all APIs as functions, the one kind that templates know. What a client runs itself and has a
// schema, or takes one text, becomes a function; what only its maker's server can run is left out, with a
// line in the log. Knows the kinds of tools; calls in answers go back by ToolOrigin.
#pragma once

#include <map>
#include <string>

#include "server/content.h"

namespace sluice::server {

/// As what the client knows a function of ours.
struct ToolOrigin {
  enum class Kind { Function, Custom, LocalShell, ToolSearch } kind = Kind::Function;
  std::string name;   ///< as the client calls it
  std::string space;  ///< its namespace; empty: none
};

/// By the function's name. What is not in it is a function of that name.
using ToolOrigins = std::map<std::string, ToolOrigin>;

/// Tools of chat completions. Throws ApiError that names the tool.
Json chat_tools(const Json& list, ToolOrigins& origins, LeftOut& left_out);
/// Tools of the responses API.
Json responses_tools(const Json& list, ToolOrigins& origins, LeftOut& left_out);
/// Tools of Anthropic's API.
Json anthropic_tools(const Json& list, LeftOut& left_out);

/// A call as an item of the responses API: {"type": TYPE, "id": PREFIX..., ...}.
struct CallItem {
  std::string type, id_prefix;
  Json begun, whole;  ///< members when it begins, and those that its end changes
  std::string event;  ///< events of its text are EVENT.delta and EVENT.done; empty: it has none
  Json done;          ///< members of EVENT.done
};
/// `text`: its arguments, or a custom tool's input (CustomInput).
CallItem call_item(const ToolOrigin& origin, const std::string& text);

/// The name of a function of a namespace.
std::string name_in_space(const std::string& space, const std::string& name);

}  // namespace sluice::server
