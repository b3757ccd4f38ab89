// Parts that answers of several APIs share: ids, events, usage, timings, log-probabilities.
#pragma once

#include <string>
#include <string_view>

#include "server/generation.h"

namespace sluice::server {

/// A name that nothing else has: "chatcmpl-" and 24 characters.
std::string new_id(std::string_view prefix);
int64_t unix_now();
/// When this was first asked: about since when the server is there.
int64_t server_start();
/// A name of a text, of 64 hexadecimal digits.
std::string hex_digest(std::string_view text);

std::string dump(const Json& json);
HttpResponse json_response(const Json& json);

/// The head of a stream of server-sent events, and the first of them.
HttpResponse event_stream(std::string opening = {});
/// "data: {...}\n\n", with "event: NAME\n" in front if there is a name.
std::string event(const Json& data, std::string_view name = {});
inline constexpr std::string_view kCommentPing = ": ping\n\n";
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

Json usage_json(const Generation& generation);
/// Tokens and speed of a choice, as llama.cpp tells them.
Json timings_json(const engine::Result& result);

/// One token's entry in the `logprobs.content` of chat completions.
Json token_json(const Service& service, const TokenInfo& token);

/// Why a choice ended: "stop", "length", "tool_calls".
const char* finish_reason(const Choice& choice);

}  // namespace sluice::server
