// llama.cpp's flags, as people have them in scripts: taken with their meaning, passed over with a line, or
// refused by name; never read as another flag's value.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli11.h"

namespace sluice::cli {

/// What follows a flag.
enum class Takes : uint8_t { Nothing, Value, Two, Switch /* on, off or auto, which may be left away */ };

/// What becomes of one.
enum class Fate : uint8_t {
  Same,     ///< is another name of ours, which is `text`
  Over,     ///< means nothing here; `text` is why
  Refused,  ///< `text` says what there is instead, or nothing
  Meant,    ///< llama_flags.cc has a rule of its own for it
};

constexpr uint8_t kRun = 1, kChat = 2, kServe = 4, kBench = 8, kTexts = kRun | kChat,
                  kEvery = kRun | kChat | kServe, kWithBench = kEvery | kBench;

/// One row: a flag with all its names.
struct LlamaFlag {
  const char* names;  ///< between commas
  Takes takes;
  uint8_t commands;  ///< that the row is for
  Fate fate;
  const char* text;
  const char* idle = "";  ///< values, between commas, with which a refused one changes nothing
};

std::span<const LlamaFlag> llama_flags();

/// The arguments of a command line in the words of the app's commands. Of run, chat and serve llama.cpp's
/// flags are translated, of bench llama-bench's, and `tell` gets a line for each that is passed over; of
/// every command -xyz becomes
/// --xyz where there is that. Throws UsageError that names a flag which is refused, that wants a value, or
/// that nobody knows.
std::vector<std::string> translate_arguments(const CLI::App& app, std::vector<std::string> arguments,
                                             const std::function<void(const std::string&)>& tell);

}  // namespace sluice::cli
