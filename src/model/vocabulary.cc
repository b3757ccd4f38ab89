// GGUF's tokenizer keys -> text::Vocab.
#include <algorithm>
#include <limits>

#include "model/model.h"
#include "text/pretokenize.h"

namespace sluice::model {
namespace {

/// Whether texts begin with BOS where a file does not say.
bool begins(const text::Vocab& vocab) {
  if (vocab.model == "llama") return true;
  return vocab.model == "gpt2" && text::pretokenizer_row(vocab.pre).begins;
}

/// Byte-level BPE that would make single bytes of every text though it has other tokens, and nobody is told.
/// (A file with an empty list says so itself.)
bool lacks_merges(const gguf::File& file, const text::Vocab& vocab) {
  if (vocab.model != "gpt2" || file.find("tokenizer.ggml.merges")) return false;
  const auto others = std::ranges::count_if(
      vocab.types, [](text::TokenType type) { return type != text::TokenType::Normal; });
  return std::ssize(vocab.tokens) - others > 256;
}

}  // namespace

std::optional<std::string> vocabulary_warning(const gguf::File& file) {
  const bool cuts = file.string("tokenizer.ggml.model").value_or("") == "gpt2";
  if (!cuts || file.string("tokenizer.ggml.pre") ||
      file.string("general.architecture").value_or("") == "glm4moelite")
    return std::nullopt;
  return fmt::format(
      "{}: no tokenizer.ggml.pre, so texts are cut by a rule that most models were not trained with; a file "
      "that "
      "was converted lately has it",
      file.path());
}

text::Tokenizer load_tokenizer(const gguf::File& file) {
  const std::string prefix = "tokenizer.ggml.";
  const auto narrow = [](int64_t id) {  // what no int32 holds must not become some other token's id
    return static_cast<int32_t>(std::clamp<int64_t>(id, -2, std::numeric_limits<int32_t>::max()));
  };
  const auto id = [&](const char* key) {
    constexpr int64_t kNone = std::numeric_limits<uint32_t>::max();  // -1, as converters have written it
    const int64_t written = file.integer(prefix + key + "_token_id").value_or(-1);
    return written == kNone ? -1 : narrow(written);
  };
  text::Vocab vocab;
  try {
    vocab.model = file.string(prefix + "model").value_or("");
    vocab.pre = file.string(prefix + "pre").value_or("default");
    vocab.tokens = file.strings(prefix + "tokens").value_or(std::vector<std::string_view>{});
    vocab.merges = file.strings(prefix + "merges").value_or(std::vector<std::string_view>{});
    for (const int64_t type : file.integers(prefix + "token_type").value_or(std::vector<int64_t>{})) {
      vocab.types.push_back(static_cast<text::TokenType>(std::clamp<int64_t>(type, 0, 127)));
    }
    for (const double score : file.numbers(prefix + "scores").value_or(std::vector<double>{})) {
      vocab.scores.push_back(static_cast<float>(score));
    }
    if (vocab.model.empty()) fail("tokenizer.ggml.model is missing: the file has no vocabulary");
    if (lacks_merges(file, vocab))
      fail(
          "tokenizer.ggml.merges is missing: without it texts become single bytes, whatever tokens there "
          "are");
    vocab.bos = id("bos"), vocab.eos = id("eos"), vocab.eot = id("eot"), vocab.eom = id("eom");
    // ollama's early files name the ends of a turn in one array alone, and give no or another pre-tokenizer.
    const auto ends = file.integers(prefix + "eos_token_ids").value_or(std::vector<int64_t>{});
    if (vocab.eot < 0 && ends.size() > 1) vocab.eot = narrow(ends[1]);
    if (vocab.eom < 0 && ends.size() > 2) vocab.eom = narrow(ends[2]);
    if (file.string("general.architecture").value_or("") == "glm4moelite") vocab.pre = "glm4";
    vocab.pad = id("padding"), vocab.unk = id("unknown");
    // SentencePiece's files that do not say mean yes, in both; others go by their pre-tokenizer.
    vocab.add_bos = file.boolean(prefix + "add_bos_token").value_or(vocab.bos >= 0 && begins(vocab));
    vocab.space_in_front = file.boolean(prefix + "add_space_prefix").value_or(true);
    text::Tokenizer tokenizer(vocab);
    // Ids go from the tokenizer into the table and from the logits back into the tokenizer. A file of a
    // vocabulary alone has no table.
    const gguf::Tensor* table = file.tensor("token_embd.weight");
    if (table != nullptr && table->shape[1] != tokenizer.size())
      fail("{} tokens, but token_embd.weight has {} rows", tokenizer.size(), table->shape[1]);
    return tokenizer;
  } catch (const Error& error) {
    fail("{}: {}", file.path(), error.what());
  }
}

}  // namespace sluice::model
