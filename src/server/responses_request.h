// Requests of OpenAI's responses API, as conversations that templates know. Stateless: what was said before
// comes with every request.
#pragma once

#include "server/chat_request.h"

namespace sluice::server {

struct ResponsesRequest {
  ChatRequest chat;
  Json echo = Json::object();  ///< fields that the answer repeats
};

/// Throws ApiError.
ResponsesRequest read_responses(const Json& body, const Service& service);

}  // namespace sluice::server
