// POST /tokenize, /detokenize, /apply-template: text and tokens as the model sees them.
#include <iterator>

#include "base/interruption.h"
#include "server/answer.h"
#include "server/body.h"
#include "server/chat_completions_request.h"
#include "server/endpoints.h"
#include "text/json_text.h"
#include "text/stream.h"

namespace sluice::server {

namespace {

text::Conversation read_conversation(Fields& fields, LastAnswer last_answer) {
  ChatRequest request;
  read_chat_conversation(fields, request, last_answer);
  return std::move(request.conversation);
}

std::string decoded(const Service& service, std::span<const int32_t> tokens) {
  text::Utf8Stream stream;
  std::string text = stream.push(service.tokenizer.decode(tokens, true));
  return text += stream.finish();
}

/// The beginning of an object with the tokens, as text at once: as values they would take many times as much.
std::string token_list(const Call& call, std::span<const int32_t> tokens, bool pieces) {
  constexpr size_t kCounted = 64 << 10;
  std::string list = R"({"tokens":[)";
  size_t counted = 0;
  for (const int32_t token : tokens) {
    if (list.back() != '[') list += ',';
    if (pieces) {
      const std::string piece = dump(decoded(call.service, {&token, 1}));
      fmt::format_to(std::back_inserter(list), R"({{"id":{},"piece":{}}})", token, piece);
    } else {
      fmt::format_to(std::back_inserter(list), "{}", token);
    }
    if (list.size() < counted + kCounted) continue;
    Interruptible::look();
    call.take_for_work(list.capacity() - counted);
    counted = list.capacity();
  }
  return list += ']';
}

}  // namespace

// `content` as llama.cpp has it, `prompt` and `messages` as vLLM has them.
void tokenize(const Call& call) {
  const Json body = request_json(call);
  const Service& service = call.service;
  Fields fields(body);
  std::vector<int32_t> tokens;
  if (fields.any("messages")) {
    tokens = encode_chat(service, read_conversation(fields, LastAnswer::IsClosed)).tokens;
  } else {
    auto text = fields.string("content");
    bool begins = fields.boolean("add_special").value_or(false);
    if (!text) {
      text = fields.string("prompt");
      begins = fields.boolean("add_special_tokens").value_or(true);
    }
    if (!text) bad_field("content", "is missing");
    const bool parse = fields.boolean("parse_special").value_or(true);
    if (begins && service.tokenizer.add_bos()) tokens.push_back(service.tokenizer.bos());
    service.tokenizer.append(*text, parse, tokens);
    fields.string("model");
  }
  const bool pieces = fields.boolean("with_pieces").value_or(false);
  fields.ignore(
      {"content", "prompt", "add_special", "add_special_tokens", "parse_special", "return_token_strs"});
  fields.finish();
  const Json rest = {{"count", tokens.size()}, {"max_model_len", service.engine.options().context}};
  std::string list = token_list(call, tokens, pieces);
  list += "," + dump(rest).substr(1);
  call.exchange->respond({200, "application/json", std::move(list), {}});
}

void detokenize(const Call& call) {
  const Json body = request_json(call);
  const Service& service = call.service;
  Fields fields(body);
  const Json* list = fields.array("tokens");
  if (!list) bad_field("tokens", "is missing");
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& id = (*list)[i];
    const bool good =
        id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < service.tokenizer.size();
    if (!good)
      bad_field(fmt::format("tokens[{}]", i), "expected a token id from 0 to {}",
                service.tokenizer.size() - 1);
    tokens.push_back(id.get<int32_t>());
  }
  fields.string("model");
  fields.finish();
  const std::string text = decoded(service, tokens);
  call.exchange->respond(json_response({{"content", text}, {"prompt", text}}));
}

void apply_template(const Call& call) {
  const Json body = request_json(call);
  Fields fields(body);
  text::Conversation conversation = read_conversation(fields, LastAnswer::GoesOn);  // as llama.cpp has it
  fields.finish();
  call.exchange->respond(json_response({{"prompt", render_prompt(call.service, std::move(conversation))}}));
}

}  // namespace sluice::server
