#include "cli/token_source.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::cli {

std::vector<int32_t> read_token_file(const std::string& path, int64_t vocabulary) {
  const std::string text = read_file(path);
  if (!text::is_json(text)) fail("{}: not JSON", path);
  const auto json = text::parse_plain(text);
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) {
    fail("{}: expected an object with an array \"tokens\"", path);
  }
  std::vector<int32_t> tokens;
  for (const auto& item : json["tokens"]) {
    const bool valid =
        item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() < vocabulary;
    if (!valid) fail("{}: tokens[{}] is no id from 0 to {}", path, tokens.size(), vocabulary - 1);
    tokens.push_back(item.get<int32_t>());
  }
  if (tokens.empty()) fail("{}: \"tokens\" is empty", path);
  return tokens;
}

std::vector<int32_t> tokens_of_text(const gguf::File& file, const std::string& text) {
  const text::Tokenizer tokenizer = model::load_tokenizer(file);
  std::vector<int32_t> tokens;
  if (tokenizer.add_bos()) tokens.push_back(tokenizer.bos());
  tokenizer.append(text, false, tokens);
  return tokens;
}

}  // namespace sluice::cli
