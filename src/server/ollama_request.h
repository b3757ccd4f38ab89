// Requests of Ollama's API as chat completions: the same conversation in other words.
#pragma once

#include <string>

#include "server/chat_request.h"

namespace sluice::server {

struct OllamaRequest {
  Json chat;                ///< as read_chat takes it
  bool empty = false;       ///< asks for nothing but that the model be loaded
  bool raw = false;         ///< the prompt is the model's as it is
  std::string prompt = {};  ///< of raw
  LeftOut left_out = {};
};

/// The body of /api/chat. Throws ApiError.
OllamaRequest read_ollama_chat(const Json& body);
/// The body of /api/generate. Throws ApiError.
OllamaRequest read_ollama_generate(const Json& body);

}  // namespace sluice::server
