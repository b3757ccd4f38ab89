#include "server/api_error.h"

namespace sluice::server {

namespace {

const char* openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError bad_request(const Error& error) {
  const std::string message = error.what();
  const size_t colon = message.find(": ");
  const std::string path = message.substr(0, colon == std::string::npos ? 0 : colon);
  return {400, message, path.find(' ') == std::string::npos ? path : ""};
}

ApiError out_of_memory() { return {503, "too little memory for this request now; try again"}; }

ApiError context_exceeded(Style style, int64_t prompt_tokens, int64_t context) {
  if (style == Style::Anthropic)
    return {400, fmt::format("prompt is too long: {} tokens > {} maximum", prompt_tokens, context - 1)};
  ApiError error(400,
                 fmt::format("the prompt has {} tokens, but this model's maximum context length is {} tokens",
                             prompt_tokens, context),
                 "messages", "context_length_exceeded");
  error.openai_type = "exceed_context_size_error";
  error.more = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context}};
  return error;
}

Json error_json(Style style, const ApiError& error) {
  if (style == Style::Ollama) return {{"error", error.what()}};
  if (style == Style::Anthropic) {
    Json inner = {{"type", anthropic_type(error.status)}, {"message", error.what()}};
    inner.update(error.more);
    return {{"type", "error"}, {"error", std::move(inner)}};
  }
  Json inner = {{"message", error.what()},
                {"type", error.openai_type.empty() ? openai_type(error.status) : error.openai_type},
                {"param", error.param.empty() ? Json() : Json(error.param)},
                {"code", error.code.empty() ? Json() : Json(error.code)}};
  inner.update(error.more);
  return {{"error", std::move(inner)}};
}

HttpResponse error_response(Style style, const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(style, error).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace sluice::server
