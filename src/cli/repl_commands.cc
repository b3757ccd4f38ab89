// The commands of the REPL, and the parameters that /set parameter changes: a table each.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "base/file.h"
#include "cli/output.h"
#include "cli/repl.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

template <typename Number>
Number number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail("\"{}\" is no number of the kind that is expected", gguf::printable(text));
  return value;
}

struct Parameter {
  const char* name;
  const char* help;
  void (*set)(ChatSettings& settings, std::string_view value);
  std::string (*get)(const ChatSettings& settings);
};

/// A row for a number in the sampling parameters.
#define SAMPLING(field)                                                                                  \
  [](ChatSettings& s, std::string_view v) { s.sampling.field = number<decltype(s.sampling.field)>(v); }, \
      [](const ChatSettings& s) { return fmt::format("{}", s.sampling.field); }

std::string stops_text(const ChatSettings& settings) {
  std::string out;
  for (const std::string& stop : settings.stops) out += fmt::format("\"{}\" ", gguf::printable(stop));
  return out;
}

constexpr Parameter kParameters[] = {
    {"temperature", "0: always the likeliest token", SAMPLING(temperature)},
    {"top_k", "keep the K likeliest tokens; 0: off", SAMPLING(top_k)},
    {"top_p", "keep the likeliest tokens that make up P; 1: off", SAMPLING(top_p)},
    {"min_p", "keep tokens of at least P times the likeliest's probability; 0: off", SAMPLING(min_p)},
    {"repeat_penalty", "divides the scores of recent tokens; 1: off", SAMPLING(repeat_penalty)},
    {"repeat_last_n", "how many last tokens count as recent; -1: all", SAMPLING(penalty_window)},
    {"presence_penalty", "subtracted once from tokens of the answer; 0: off", SAMPLING(presence_penalty)},
    {"frequency_penalty", "subtracted for each time in the answer; 0: off", SAMPLING(frequency_penalty)},
    {"seed", "of the next answer; each one after it adds 1", nullptr, nullptr},
    {"num_predict", "tokens of an answer at most; -1: no limit",
     [](ChatSettings& s, std::string_view v) {
       s.max_tokens = number<int64_t>(v);
       if (s.max_tokens < -1) fail("num_predict {}: expected -1 or more", s.max_tokens);
     },
     [](const ChatSettings& s) { return fmt::format("{}", s.max_tokens); }},
    {"stop", "one more text at which to stop",
     [](ChatSettings& s, std::string_view v) { s.stops.emplace_back(v); }, stops_text},
};
#undef SAMPLING

/// "on" or "off". Throws Error for anything else.
bool is_on(std::string_view name, std::string_view value) {
  if (value != "on" && value != "off") fail("/set {}: expected on or off", name);
  return value == "on";
}

/// The first word, and what follows it.
std::pair<std::string_view, std::string_view> split_word(std::string_view text) {
  const size_t end = std::min(text.find_first_of(" \t"), text.size());
  std::string_view rest = text.substr(end);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  return {text.substr(0, end), rest};
}

/// A path as a user writes it: "~/" is the home.
std::string path_of(std::string_view name, const char* command) {
  if (name.empty()) fail("{}: expected the name of a file", command);
  const char* home = std::getenv("HOME");
  if (name.starts_with("~/") && home != nullptr) return home + std::string(name.substr(1));
  return std::string(name);
}

}  // namespace

std::span<const Repl::Command> Repl::commands() {
  static constexpr Command kCommands[] = {
      {"/help", "", "this list", &Repl::help},
      {"/?", "", nullptr, &Repl::help},
      {"/set", "parameter NAME VALUE", "change how answers are drawn; /set parameter lists the names",
       &Repl::set},
      {"/set", "system TEXT", "the system message, from the next answer on; no TEXT: none", &Repl::set},
      {"/set", "think on|off", "whether the model thinks first, where its template lets one choose",
       &Repl::set},
      {"/set", "fold on|off", "show how long the thinking was in place of it", &Repl::set},
      {"/set", "verbose on|off", "tokens and speed after each answer", &Repl::set},
      {"/show", "settings|template|system|info",
       "what is set, the model's template, the system message, the model", &Repl::show},
      {"/clear", "", "forget the conversation", &Repl::clear},
      {"/regen", "", "answer the last message anew", &Repl::regenerate},
      {"/read", "FILE", "the text of a file as a message", &Repl::read_file_as_message},
      {"/save", "FILE", "write the conversation as JSON", &Repl::save},
      {"/load", "FILE", "go on with a conversation that was saved", &Repl::load},
      {"/bye", "", "leave (so does Ctrl-D)", &Repl::bye},
      {"/exit", "", nullptr, &Repl::bye},
      {"/quit", "", nullptr, &Repl::bye},
  };
  return kCommands;
}

std::vector<std::string> Repl::phrases() {
  std::vector<std::string> out;
  for (const Command& command : commands()) {
    if (command.help == nullptr || std::string_view(command.name) == "/set" ||
        std::string_view(command.name) == "/show")
      continue;
    out.push_back(*command.arguments == '\0' ? command.name : std::string(command.name) + " ");
  }
  for (const char* end :
       {"system ", "think on", "think off", "fold on", "fold off", "verbose on", "verbose off"})
    out.push_back(std::string("/set ") + end);
  for (const Parameter& parameter : kParameters)
    out.push_back(std::string("/set parameter ") + parameter.name + " ");
  for (const char* end : {"settings", "template", "system", "info"})
    out.push_back(std::string("/show ") + end);
  return out;
}

void Repl::help(std::string_view) {
  std::string text;
  for (const Command& command : commands()) {
    if (command.help == nullptr) continue;
    text += fmt::format("  {:<36} {}\n", std::string(command.name) + " " + command.arguments, command.help);
  }
  print_text(text +
             "\nAnything else is a message. \"\"\" begins and ends one of several lines. Ctrl-C stops an "
             "answer; what"
             "\ncame of it stays in the conversation.\n");
}

void Repl::set(std::string_view arguments) {
  const auto [what, value] = split_word(arguments);
  if (what == "parameter") {
    set_parameter(value);
  } else if (what == "system") {
    session_.settings.system = value;
  } else if (what == "think") {
    session_.settings.think = is_on(what, value);
  } else if (what == "fold") {
    options_.fold = is_on(what, value);
  } else if (what == "verbose") {
    options_.verbose = value.empty() || is_on(what, value);
  } else {
    fail("/set: expected parameter, system, think, fold or verbose");
  }
}

void Repl::set_parameter(std::string_view arguments) {
  const auto [name, value] = split_word(arguments);
  if (name.empty()) {
    std::string text;
    for (const Parameter& p : kParameters) text += fmt::format("  {:<18} {}\n", p.name, p.help);
    return print_text(text);
  }
  for (const Parameter& parameter : kParameters) {
    if (name != parameter.name) continue;
    if (value.empty()) fail("/set parameter {}: expected a value", name);
    if (parameter.set == nullptr) return session_.set_next_seed(number<uint64_t>(value));
    ChatSettings changed = session_.settings;
    parameter.set(changed, value);
    changed.sampling.validate();
    session_.settings = std::move(changed);
    return;
  }
  fail("/set parameter: no parameter \"{}\"; /set parameter lists them", gguf::printable(name));
}

std::string Repl::settings_text() const {
  const ChatSettings& settings = session_.settings;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<18} {}\n", name, value);
  };
  for (const Parameter& p : kParameters)
    line(p.name, p.get != nullptr ? p.get(settings) : fmt::format("{}", session_.next_seed()));
  line("think", !settings.think ? "as the template has it" : *settings.think ? "on" : "off");
  line("fold", options_.fold ? "on" : "off");
  line("verbose", options_.verbose ? "on" : "off");
  return text;
}

std::string Repl::info_text() const {
  const gguf::File& file = session_.model().file();
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<18} {}\n", name, value);
  };
  line("file", gguf::printable(file.path(), 4096));
  for (const auto& [name, key] : {std::pair{"name", "general.name"},
                                  {"description", "general.description"},
                                  {"architecture", "general.architecture"},
                                  {"size", "general.size_label"},
                                  {"license", "general.license"}}) {
    const gguf::Value* value = file.find(key);
    const auto* found = value == nullptr ? nullptr : std::get_if<std::string_view>(&value->value);
    if (found != nullptr) line(name, gguf::printable(*found));
  }
  line("context",
       fmt::format("{} tokens, {} of them in use", session_.model().context(), session_.context_tokens()));
  line("messages", fmt::format("{}", session_.messages()));
  return text;
}

void Repl::show(std::string_view arguments) {
  std::string text;
  if (arguments == "settings") {
    text = settings_text();
  } else if (arguments == "template") {
    text = session_.template_source();
  } else if (arguments == "system") {
    text = session_.settings.system.empty() ? "no system message" : session_.settings.system;
  } else if (arguments == "info") {
    text = info_text();
  } else {
    fail("/show: expected settings, template, system or info");
  }
  if (input_.is_terminal()) text = terminal_safe(text);
  print_text(text.ends_with('\n') ? text : text + "\n");
}

void Repl::clear(std::string_view) { session_.clear(); }

void Repl::regenerate(std::string_view) { reply(nullptr); }

void Repl::read_file_as_message(std::string_view arguments) {
  const std::string path = path_of(arguments, "/read");
  if (path == "-") fail("/read: expected the name of a file");
  const std::string text = read_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) fail("{}: there is no text in it", path);
  say(text);
}

void Repl::save(std::string_view arguments) {
  const std::string text = session_.saved().dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_file(path_of(arguments, "/save"), std::as_bytes(std::span(text)));
}

void Repl::load(std::string_view arguments) {
  const std::string path = path_of(arguments, "/load");
  const std::string text = path == "-" ? "" : read_file(path);
  if (!text::is_json(text)) fail("{}: not JSON", path);
  try {
    session_.restore(text::parse_plain(text));
  } catch (const Error& error) {
    fail("{}: {}", path, error.what());
  }
}

void Repl::bye(std::string_view) { over_ = true; }

}  // namespace sluice::cli
