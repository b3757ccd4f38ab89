// Requests of OpenAI's chat completions, and of other servers that have them, as conversations that templates
// know.
#pragma once

#include "server/chat_request.h"

namespace sluice::server {

struct ChatOptions {
  bool include_usage = false;
  bool progress = false;   ///< a stream tells how far the prompt is read, as llama.cpp's server does
  bool any_field = false;  ///< fields that are not known here are left out: set before the body is read
};

/// The whole body. Throws ApiError.
ChatRequest read_chat(const Json& body, const Service& service, ChatOptions& options);

/// What becomes of a last message of the assistant where the request does not say it.
enum class LastAnswer : uint8_t { IsClosed, GoesOn };

/// The conversation alone: messages, tools, chat_template_kwargs, and where the prompt ends.
void read_chat_conversation(Fields& fields, ChatRequest& request, LastAnswer last_answer);

}  // namespace sluice::server
