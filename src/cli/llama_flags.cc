#include "cli/llama_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

/// The words of a list between commas.
std::vector<std::string_view> words(std::string_view list) {
  std::vector<std::string_view> out;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    out.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

uint8_t command_bit(std::string_view name) {
  return name == "run"     ? kRun
         : name == "chat"  ? kChat
         : name == "serve" ? kServe
         : name == "bench" ? kBench
                           : 0;
}

/// -xyz, and not -x5 or -x-3, which are values behind a short flag.
bool has_letters_behind_one_dash(std::string_view text) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return text.size() > 2 && text[0] == '-' && letter(text[1]) && letter(text[2]);
}

bool is_equal(std::string_view value, std::string_view other) {
  if (value == other) return true;
  const auto number = [](std::string_view text) -> std::optional<double> {
    const std::string copy(text);
    char* end = nullptr;
    const double read = std::strtod(copy.c_str(), &end);
    return !copy.empty() && *end == 0 ? std::optional(read) : std::nullopt;
  };
  const auto a = number(value), b = number(other);
  return a && b && *a == *b;
}

const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  if (name.size() < 2 || name[0] != '-') return nullptr;
  if (const CLI::Option* option = command.get_option_no_throw(name)) return option;
  for (const CLI::App* part : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (const CLI::Option* option = find_option(*part, name)) return option;
  }
  return nullptr;
}

class Translator {
 public:
  Translator(const CLI::App& command, std::vector<std::string> arguments,
             const std::function<void(const std::string&)>& tell)
      : command_(command), bit_(command_bit(command.get_name())), in_(std::move(arguments)), tell_(tell) {}

  std::vector<std::string> run() {
    while (next_ < in_.size()) {
      const std::string argument = in_[next_++];
      if (argument == "--") {
        out_.push_back(argument);
        out_.insert(out_.end(), in_.begin() + static_cast<std::ptrdiff_t>(next_), in_.end());
        break;
      }
      if (argument.size() < 2 || argument[0] != '-') {
        out_.push_back(argument);
      } else {
        flag(argument);
      }
    }
    if (!replaced_.empty()) return {replaced_};
    out_.insert(out_.begin(), command_.get_name());
    return out_;
  }

 private:
  void flag(const std::string& argument) {
    const size_t equals = argument.find('=');
    name_ = argument.substr(0, equals);
    given_ = equals != std::string::npos ? std::optional(argument.substr(equals + 1)) : std::nullopt;
    const std::string ours = our_name(name_);
    if (!ours.empty()) {
      our_flag(ours, argument);
    } else if (const LlamaFlag* row = row_of(name_)) {
      theirs(*row);
    } else if (has_letters_behind_one_dash(name_)) {
      throw UsageError(fmt::format("{}: no such flag; --help tells more", name_));
    } else {
      out_.push_back(argument);
    }
  }

  /// The name that CLI11 knows a flag of this command by; empty: it has none.
  std::string our_name(const std::string& name) const {
    if (find_option(command_, name) != nullptr) return name;
    if (has_letters_behind_one_dash(name) && find_option(command_, "-" + name) != nullptr) return "-" + name;
    return "";
  }

  const LlamaFlag* row_of(const std::string& name) const {
    for (const LlamaFlag& row : llama_flags()) {
      if ((row.commands & bit_) == 0) continue;
      const auto names = words(row.names);
      if (std::ranges::find(names, name) != names.end()) return &row;
    }
    return nullptr;
  }

  bool is_flag(const std::string& text) const {
    const std::string name = text.substr(0, text.find('='));
    return !our_name(name).empty() || row_of(name) != nullptr;
  }

  /// The value behind a flag. Throws UsageError where there is a flag, or nothing.
  std::string value() {
    if (given_) return *std::exchange(given_, std::nullopt);
    if (next_ == in_.size() || is_flag(in_[next_]))
      throw UsageError(fmt::format("{}: a value is missing", name_));
    return in_[next_++];
  }

  void our_flag(const std::string& ours, const std::string& argument) {
    const bool takes_value = find_option(command_, ours)->get_items_expected_max() > 0;
    if (bit_ == 0 || !takes_value) {  // other commands' lists are CLI11's matter
      out_.push_back(ours + argument.substr(name_.size()));
      return;
    }
    put(ours, value());
  }

  /// One of ours with its value, which may begin with a dash.
  void put(const std::string& ours, const std::string& value) {
    if (!value.starts_with('-')) {
      out_.push_back(ours);
      out_.push_back(value);
    } else if (ours.starts_with("--")) {
      out_.push_back(ours + "=" + value);
    } else {
      out_.push_back(ours + value);
    }
  }

  void over(const std::string& shown, const char* why) {
    tell_(fmt::format("{}: passed over: {}", shown, why));
  }

  [[noreturn]] void refuse(const std::string& shown, std::string_view instead) const {
    throw UsageError(fmt::format("{}: not supported{}{}", shown, instead.empty() ? "" : ": ", instead));
  }

  void theirs(const LlamaFlag& row) {
    std::string shown = name_, first;
    if (row.takes == Takes::Switch) {
      const bool there = given_ || (next_ < in_.size() && is_switch(in_[next_]));
      if (there) first = value();
    } else if (row.takes != Takes::Nothing) {
      first = value();
    }
    if (!first.empty()) shown += " " + first;
    if (row.takes == Takes::Two) shown += " " + value();
    switch (row.fate) {
      case Fate::Same: return row.takes == Takes::Nothing ? out_.push_back(row.text) : put(row.text, first);
      case Fate::Over: return over(shown, row.text);
      case Fate::Refused: {
        const auto idle = words(row.idle);
        if (std::ranges::any_of(idle, [&](std::string_view one) { return is_equal(first, one); })) return;
        refuse(shown, row.text);
      }
      case Fate::Meant: return meant(words(row.names).back(), shown, first);
    }
  }

  static bool is_switch(const std::string& text) {
    constexpr std::string_view kValues[] = {"on", "off", "auto", "enabled", "disabled",
                                            "0",  "1",   "true", "false"};
    return std::ranges::find(kValues, text) != std::end(kValues);
  }

  /// What the table says that has a rule of its own, by its last name.
  void meant(std::string_view flag, const std::string& shown, const std::string& value) {
    if (flag == "--version") {
      replaced_ = "--version";
    } else if (flag == "--cache-list") {
      replaced_ = "list";
    } else if (flag == "--n-gpu-layers") {
      layers(shown, value);
    } else if (flag == "--cache-type-v") {
      if (value != other_value("--cache-type-k").value_or("f16"))
        refuse(shown, "keys and values have one type, which --cache-type sets");
    } else if (flag == "--system-prompt" || flag == "--system-prompt-file") {
      put("--system", flag == "--system-prompt" ? value : read_file(value));
      if (bit_ == kRun) out_.emplace_back("--chat");
    } else if (flag == "--log-disable") {
      put("--log", "off");
    } else if (flag == "--reasoning") {
      think(shown, value);
    } else if (flag == "--chat-template-kwargs") {
      const auto json = text::is_json(value) ? text::parse_plain(value) : nlohmann::ordered_json();
      const bool alone = json.is_object() && json.size() == 1 && json.contains("enable_thinking");
      if (!alone || !json["enable_thinking"].is_boolean())
        refuse(shown, "requests may hold them (chat_template_kwargs)");
      think(shown, json["enable_thinking"] ? "on" : "off");
    }
  }

  void think(const std::string& shown, const std::string& value) {
    if (value == "auto") return;
    if (bit_ == kServe) refuse(shown, "requests say so (chat_template_kwargs, reasoning_effort)");
    put("--think", value);
    if (bit_ == kRun) out_.emplace_back("--chat");
  }

  /// Layers on a GPU: none or all.
  void layers(const std::string& shown, const std::string& value) {
    if (other_value("--backend")) return over(shown, "--backend says where weights lie");
    put("--backend", is_equal(value, "0") ? "cpu" : "auto");
    tell_(fmt::format("{}: taken as --backend {}: {}", shown, out_.back(),
                      "weights lie on a GPU where there is one, as many as fit"));
  }

  /// The value of another flag on this command line, whichever of its names it has.
  std::optional<std::string> other_value(const std::string& ours) const {
    const CLI::Option* wanted = find_option(command_, ours);
    for (size_t i = 0; i + 1 < in_.size(); ++i) {
      const std::string name = our_name(in_[i].substr(0, in_[i].find('=')));
      if (name.empty() || wanted == nullptr || find_option(command_, name) != wanted) continue;
      const size_t equals = in_[i].find('=');
      return equals != std::string::npos ? in_[i].substr(equals + 1) : in_[i + 1];
    }
    return {};
  }

  const CLI::App& command_;
  uint8_t bit_;
  std::vector<std::string> in_, out_;
  std::string replaced_;  ///< the whole command line, where a flag is a command
  const std::function<void(const std::string&)>& tell_;
  size_t next_ = 0;
  std::string name_;
  std::optional<std::string> given_;
};

}  // namespace

std::vector<std::string> translate_arguments(const CLI::App& app, std::vector<std::string> arguments,
                                             const std::function<void(const std::string&)>& tell) {
  if (arguments.empty()) return arguments;
  const auto commands =
      app.get_subcommands([&](const CLI::App* one) { return one->get_name() == arguments.front(); });
  if (commands.empty()) return arguments;
  arguments.erase(arguments.begin());
  return Translator(*commands.front(), std::move(arguments), tell).run();
}

}  // namespace sluice::cli
