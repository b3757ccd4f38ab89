// Requests of Anthropic's messages API, as conversations that templates know.
#pragma once

#include "server/chat_request.h"

namespace sluice::server {

/// The whole body. Fields that this server does not know are passed over: clients of this API send those of
/// tomorrow. Throws ApiError.
ChatRequest read_messages(const Json& body, const Service& service);

/// The conversation alone, for counting.
text::Conversation read_messages_conversation(const Json& body);

}  // namespace sluice::server
