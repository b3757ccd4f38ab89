#include "cli/chat_template.h"

#include "base/error.h"

namespace sluice::cli {

std::string_view chat_template_source(const gguf::File& file) {
  return file.string("tokenizer.chat_template").value_or("");
}

std::string token_text(const gguf::File& file, const text::Tokenizer& tokenizer, const char* name) {
  const auto id = file.integer(std::string("tokenizer.ggml.") + name + "_token_id");
  if (!id || *id < 0 || *id >= tokenizer.size()) return "";
  return std::string(tokenizer.bytes(static_cast<int32_t>(*id), true));
}

text::ChatTemplate make_chat_template(const gguf::File& file, const text::Tokenizer& tokenizer,
                                      bool trusts_users) {
  const std::string_view source = chat_template_source(file);
  if (source.empty()) fail("{}: no chat template (tokenizer.chat_template)", file.path());
  try {
    return {source, token_text(file, tokenizer, "bos"), token_text(file, tokenizer, "eos"),
            text::ControlTokens(tokenizer, trusts_users)};
  } catch (const text::jinja::TemplateError& error) {
    fail("{}: chat template: {}", file.path(), error.what());
  }
}

}  // namespace sluice::cli
