// What is said of a command line that CLI11 refuses: what was written, and what was expected there.
#pragma once

#include <string>

#include "cli/cli11.h"

namespace sluice::cli {

/// One line, without a line end. `app` has been asked to parse the command line.
std::string usage_text(const CLI::App& app, const CLI::Error& error);

}  // namespace sluice::cli
