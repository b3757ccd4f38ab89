// POST /tokenize, /detokenize, /apply-template: text and tokens as the model sees them.
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
  Json list = Json::array();
  for (const int32_t token : tokens) {
    if (pieces)
      list.push_back({{"id", token}, {"piece", decoded(service, {&token, 1})}});
    else
      list.push_back(token);
  }
  call.exchange->respond(json_response({{"tokens", std::move(list)},
                                        {"count", tokens.size()},
                                        {"max_model_len", service.engine.options().context}}));
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
