// What a request did wrong, in the words of the two APIs that clients speak.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "server/http.h"

namespace sluice::server {

using Json = nlohmann::ordered_json;

/// Whose shape an error has.
enum class Style { OpenAi, Anthropic, Ollama };

class ApiError : public Error {
 public:
  ApiError(int http_status, const std::string& message, std::string field = {}, std::string error_code = {})
      : Error(message), status(http_status), param(std::move(field)), code(std::move(error_code)) {}
  int status;
  std::string param;           ///< the field that is wrong: "messages[0].content"
  std::string code;            ///< of OpenAI's shape: "context_length_exceeded"
  std::string openai_type{};   ///< in place of the status's
  Json more = Json::object();  ///< further members of the error
};

/// A 400 that names the field.
template <typename... Args>
[[noreturn]] void bad_field(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format("{}: {}", field, fmt::format(format, std::forward<Args>(args)...)), field);
}

/// A 400 of an Error whose message begins with what is wrong: "messages[2].role: expected ...".
ApiError bad_request(const Error& error);

/// There is too little memory for a request now.
ApiError out_of_memory();

/// The prompt leaves no room: a 400 in the words by which the clients of each API know it.
ApiError context_exceeded(Style style, int64_t prompt_tokens, int64_t context);

/// The error's JSON, as a body or as the data of an event.
Json error_json(Style style, const ApiError& error);
HttpResponse error_response(Style style, const ApiError& error);

}  // namespace sluice::server
