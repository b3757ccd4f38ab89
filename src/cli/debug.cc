// sluice debug: parts of the text room as filters, JSON lines in and out, so that anyone can check them
// against other implementations. One line out for every line in, an error being a line too; fields that a
// filter does not know are ignored.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "text/exact_json.h"
#include "text/jinja/template.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/pretokenize.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Answers every line of standard input by one line. `answer` throws Error for what it cannot answer.
template <typename Answer>
void filter_lines(const Answer& answer) {
  for (std::string line; std::getline(std::cin, line);) {
    std::string out;
    try {
      // Before anything is built: building and walking values recurses as deep as they are nested.
      if (!text::is_json(line)) fail("expected JSON, nested at most {} deep", text::kJsonDepth);
      Json input = text::parse_plain(line);
      if (!input.is_object()) fail("expected a JSON object");
      out = answer(input);
    } catch (const text::jinja::TemplateError& error) {
      // A template's own refusal is told in its own words.
      out = dump({{"error", error.raised() ? error.message() : std::string(error.what())}});
    } catch (const std::exception& error) {
      out = dump({{"error", error.what()}});
    }
    print_text(out + "\n");
  }
}

/// The member of that name, a string. Throws Error when it is not there.
std::string string_of(const Json& input, const char* name) {
  const auto found = input.find(name);
  if (found == input.end() || !found->is_string()) fail("expected a string \"{}\"", name);
  return found->get<std::string>();
}

/// The member of that name, or null.
Json take(Json& input, const char* name) {
  const auto found = input.find(name);
  return found == input.end() ? Json() : std::move(*found);
}

void pretokenize() {
  std::map<std::string, text::PreTokenizer> known;
  filter_lines([&](const Json& input) {
    const std::string pre = string_of(input, "pre"), text = string_of(input, "text");
    auto found = known.find(pre);
    if (found == known.end()) {
      found = known.emplace(pre, text::PreTokenizer(text::pretokenizer_row(pre))).first;
    }
    std::vector<std::string_view> pieces;
    found->second.split(text, pieces);
    return dump({{"pieces", pieces}});
  });
}

void tokenize() {
  std::map<std::string, text::Tokenizer> known;
  filter_lines([&](const Json& input) {
    const std::string path = string_of(input, "vocab"), text = string_of(input, "text");
    auto found = known.find(path);
    if (found == known.end()) {
      found = known.emplace(path, model::load_tokenizer(gguf::File::open(path))).first;
    }
    return dump({{"ids", found->second.encode(text, false)}});
  });
}

/// 2025-07-15 14:30:05, a Tuesday: what strftime_now() says must not depend on the day.
std::tm standing_clock() {
  std::tm out{};
  out.tm_year = 125, out.tm_mon = 6, out.tm_mday = 15, out.tm_wday = 2, out.tm_yday = 195;
  out.tm_hour = 14, out.tm_min = 30, out.tm_sec = 5;
  return out;
}

void render_templates() {
  std::map<std::string, text::jinja::Template> known;
  filter_lines([&](Json& input) {
    const std::string name = string_of(input, "template");
    auto found = known.find(name);
    if (found == known.end()) {
      found = known.emplace(name, text::jinja::Template::parse(read_file(name + ".jinja"))).first;
    }
    Json variables = {{"messages", take(input, "messages")},
                      {"tools", take(input, "tools")},
                      {"documents", nullptr},
                      {"add_generation_prompt", false}};
    Json arguments = take(input, "kwargs");
    if (!arguments.is_null() && !arguments.is_object()) fail("kwargs: expected an object");
    for (auto& [key, value] : arguments.items()) variables[key] = std::move(value);
    text::jinja::RenderOptions options;
    options.clock = standing_clock;
    return dump({{"text", found->second.render(variables, options)}});
  });
}

/// The result as one line; arguments are JSON already and stay as they are.
std::string output_line(const text::ParsedOutput& output) {
  std::string calls;
  for (const text::ToolCall& call : output.tool_calls) {
    if (!call.whole) continue;
    calls += fmt::format("{}{{\"name\":{},\"arguments\":{}}}", calls.empty() ? "" : ",",
                         text::json_quote(call.name), call.arguments);
  }
  return fmt::format("{{\"reasoning_content\":{},\"content\":{},\"tool_calls\":[{}],\"incomplete\":{}}}",
                     text::json_quote(output.reasoning_content), text::json_quote(output.content), calls,
                     output.incomplete);
}

struct ParseOptions {
  std::string format = "glm47";
  size_t chunk_bytes = 0;
};

void parse_outputs(const ParseOptions& options) {
  const text::OutputFormat& format = text::output_format(options.format);
  filter_lines([&](Json& input) {
    const std::string text = string_of(input, "text");
    const Json thinking = take(input, "starts_in_thinking");
    if (!thinking.is_null() && !thinking.is_boolean()) fail("starts_in_thinking: expected true or false");
    const Json ended = take(input, "turn_ended");
    if (!ended.is_null() && !ended.is_boolean()) fail("turn_ended: expected true or false");
    return output_line(text::parse_output(format, take(input, "tools"), thinking == true, text,
                                          options.chunk_bytes, ended == true));
  });
}

}  // namespace

void add_debug(CLI::App& app) {
  CLI::App* debug = app.add_subcommand("debug", "Filters for checking parts: JSON lines in, JSON lines out");
  debug->require_subcommand(1);
  debug->add_subcommand("pretokenize", "{pre, text} -> {pieces}")->callback(pretokenize);
  debug
      ->add_subcommand("tokenize", "{vocab: PATH.gguf, text} -> {ids}; no BOS, special tokens are not parsed")
      ->callback(tokenize);
  debug
      ->add_subcommand("template",
                       "{template, messages, tools, kwargs} -> {text} or {error}; reads ./TEMPLATE.jinja")
      ->callback(render_templates);
  auto options = std::make_shared<ParseOptions>();
  CLI::App* parse = debug->add_subcommand("parse-output",
                                          "{tools, starts_in_thinking, text, turn_ended} -> "
                                          "{reasoning_content, content, tool_calls, incomplete}");
  parse->add_option("--format", options->format, "how the model marks reasoning and calls")
      ->capture_default_str();
  parse->add_option("--chunk", options->chunk_bytes, "bytes given to the parser at a time; 0: all at once")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  parse->callback([options] { parse_outputs(*options); });
}

}  // namespace sluice::cli
