// GGUF's tokenizer keys -> text::Vocab.
#include "model/model.h"

namespace sluice::model {

text::Tokenizer load_tokenizer(const gguf::File& file) {
  const std::string prefix = "tokenizer.ggml.";
  const auto id = [&](const char* key) {
    return static_cast<int32_t>(file.integer(prefix + key + "_token_id").value_or(-1));
  };
  text::Vocab vocab;
  try {
    vocab.model = file.string(prefix + "model").value_or("");
    vocab.pre = file.string(prefix + "pre").value_or("default");
    vocab.tokens = file.strings(prefix + "tokens").value_or(std::vector<std::string_view>{});
    vocab.merges = file.strings(prefix + "merges").value_or(std::vector<std::string_view>{});
    for (const int64_t type : file.integers(prefix + "token_type").value_or(std::vector<int64_t>{})) {
      vocab.types.push_back(static_cast<text::TokenType>(type));
    }
    for (const double score : file.numbers(prefix + "scores").value_or(std::vector<double>{})) {
      vocab.scores.push_back(static_cast<float>(score));
    }
    vocab.bos = id("bos"), vocab.eos = id("eos"), vocab.eot = id("eot"), vocab.eom = id("eom");
    vocab.pad = id("padding"), vocab.unk = id("unknown");
    // SentencePiece's files that do not say mean yes, in both.
    vocab.add_bos = file.boolean(prefix + "add_bos_token").value_or(vocab.model == "llama" && vocab.bos >= 0);
    vocab.space_in_front = file.boolean(prefix + "add_space_prefix").value_or(true);
    return text::Tokenizer(vocab);
  } catch (const Error& error) {
    fail("{}: {}", file.path(), error.what());
  }
}

}  // namespace sluice::model
