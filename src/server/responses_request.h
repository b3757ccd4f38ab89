// Requests of OpenAI's responses API, as conversations that templates know. Stateless: what was said before
// comes with every request.
#pragma once

#include "server/chat_request.h"
#include "server/tool_list.h"

namespace sluice::server {

struct ResponsesRequest {
  ChatRequest chat;
  ToolOrigins origins = {};    ///< tools that are more than functions to the client
  Json echo = Json::object();  ///< fields that the answer repeats
};

/// Throws ApiError.
ResponsesRequest read_responses(const Json& body, const Service& service);

}  // namespace sluice::server
