// sluice tokenize and detokenize: a text as a model reads it, token by token, and back. Needs a file's
// vocabulary only.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "text/utf8.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeOptions {
  std::string model, text, file;
  bool ids = false, special = false, bos = false, json = false;
};

struct DetokenizeOptions {
  std::string model;
  std::vector<std::string> ids;
  bool special = false;
};

Json token_json(const text::Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.bytes(id, true);
  Json token = {{"id", id}, {"text", bytes}};
  if (text::utf8_valid_prefix(bytes) < bytes.size()) {  // part of a character: the text cannot say which
    token["bytes"] = std::vector<uint8_t>(bytes.begin(), bytes.end());
  }
  return token;
}

std::string tokens_text(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                        const TokenizeOptions& options) {
  if (options.json) {
    Json list = Json::array();
    for (const int32_t id : ids) list.push_back(options.ids ? Json(id) : token_json(tokenizer, id));
    return list.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  std::string out;
  for (const int32_t id : ids) {
    if (options.ids) {
      out += fmt::format("{}\n", id);
    } else {
      out += fmt::format("{:>7}  \"{}\"\n", id, gguf::printable(tokenizer.bytes(id, true)));
    }
  }
  return out;
}

void tokenize(const CLI::App& command, const TokenizeOptions& options) {
  std::string text = options.text;
  if (command.count("-p") == 0) text = read_file(command.count("-f") > 0 ? options.file : "-");
  const OpenedFile opened = open_file(model_path_or_bundled(options.model));
  const gguf::File& file = opened.file;
  const text::Tokenizer tokenizer = model::load_tokenizer(file);
  std::vector<int32_t> ids;
  if (options.bos) {
    if (tokenizer.bos() < 0) fail("{}: --bos: the vocabulary has no BOS token", file.path());
    ids.push_back(tokenizer.bos());
  }
  tokenizer.append(text, options.special, ids);
  print_text(tokens_text(tokenizer, ids, options));
}

/// The numbers of a text; JSON's brackets and commas may stand between them.
std::vector<std::string> split_ids(const std::string& text) {
  constexpr const char* kBetween = " \t\r\n\v\f,[]";
  std::vector<std::string> out;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    out.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBetween, end);
  }
  return out;
}

void detokenize(const DetokenizeOptions& options) {
  const bool given = !options.ids.empty();
  const std::vector<std::string> words = given ? options.ids : split_ids(read_file("-"));
  const OpenedFile opened = open_file(model_path_or_bundled(options.model));
  const gguf::File& file = opened.file;
  const text::Tokenizer tokenizer = model::load_tokenizer(file);
  std::vector<int32_t> ids;
  ids.reserve(words.size());
  for (const std::string& word : words) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool number = error == std::errc() && end == word.data() + word.size();
    if (!number || id < 0 || id >= tokenizer.size()) {
      const std::string message = fmt::format("\"{}\": expected a token id from 0 to {}",
                                              gguf::printable(word), tokenizer.size() - 1);
      if (given) throw UsageError(message);
      fail("standard input: {}", message);
    }
    ids.push_back(id);
  }
  print_text(tokenizer.decode(ids, options.special));
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text");
  command->add_option("-m,--model", options->model, "GGUF file; without it the bundled model");
  auto* text = command->add_option("-p,--prompt", options->text, "the text");
  command->add_option("-f,--file", options->file, "file with the text; without -p and -f standard input")
      ->excludes(text);
  command->add_flag("--ids", options->ids, "print ids only");
  command->add_flag("--special", options->special, "read control tokens that are written in the text");
  command->add_flag("--bos", options->bos, "put the BOS token in front");
  command->add_flag("--json", options->json, "print one JSON array");
  command->footer(
      "One token a line: its id and its text, with control characters and parts of characters escaped.");
  command->callback([command, options] { tokenize(*command, *options); });

  auto back = std::make_shared<DetokenizeOptions>();
  command = app.add_subcommand("detokenize", "Print the text of token ids");
  command->add_option("-m,--model", back->model, "GGUF file; without it the bundled model");
  command->add_option("IDS", back->ids, "token ids; without any, those on standard input");
  command->add_flag("--special", back->special, "print control tokens too, by their names");
  command->callback([back] { detokenize(*back); });
}

}  // namespace sluice::cli
