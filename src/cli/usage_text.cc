#include "cli/usage_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::cli {
namespace {

/// How many letters have to be put in, left out or changed to make one word of the other.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t corner = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, corner + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// ", did you mean X?", where one of the known words is nearly what was written.
std::string guess(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = word.size() <= 4 ? 2 : 3;  // so many edits are another word
  for (const std::string& one : known) {
    const size_t away = edits(word, one);
    if (away >= least) continue;
    least = away;
    best = one;
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(one->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// The command that was named, as far in as there are names.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// What nobody expected: the first of it.
std::string unexpected(const CLI::App& app) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> rest = app.remaining(true);
  const std::string word = rest.empty() ? "" : rest.front();
  if (word.starts_with('-')) {
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("{}: no such flag{}", name, guess(name, flag_names(command)));
  }
  if (&command == &app) return fmt::format("{}: no such command{}", word, guess(word, command_names(app)));
  const CLI::Option* text = command.get_option_no_throw("--prompt");
  return fmt::format("{}: one argument too many of {}{}{}", word, command.get_name(),
                     command.get_option_no_throw("-m") ? "; -m FILE or -hf USER/REPO names a model" : "",
                     text != nullptr && text->get_type_name() == "TEXT" ? ", -p TEXT a text" : "");
}

std::string missing(const CLI::App& app, const std::string& message) {
  const CLI::App& command = innermost(app);
  if (!message.starts_with("A subcommand is required"))
    return &command == &app ? message : fmt::format("{}: {}", command.get_name(), message);
  const std::vector<std::string> rest = app.remaining(true);
  return fmt::format("{}{}{}: expected {}", command.get_name(), rest.empty() ? "" : " ",
                     rest.empty() ? "" : rest.front(), fmt::join(command_names(command), " or "));
}

}  // namespace

std::string usage_text(const CLI::App& app, const CLI::Error& error) {
  constexpr std::string_view kConvert = "Could not convert: ", kIs = " = ";
  std::string message = error.what();
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());  // an error's name may be the app's
  if (kind == CLI::ExitCodes::ExtrasError) return unexpected(app);
  if (kind == CLI::ExitCodes::RequiredError) return missing(app, message);
  const size_t is = message.find(kIs);
  if (message.starts_with(kConvert) && is != std::string::npos)
    return fmt::format("{} {}: expected a number", message.substr(kConvert.size(), is - kConvert.size()),
                       message.substr(is + kIs.size()));
  return message;
}

}  // namespace sluice::cli
