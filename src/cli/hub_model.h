// Models that a command line names by their place on the model hub: found in the cache, or fetched with a bar
// on a terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/cli11.h"
#include "hub/hub.h"

namespace sluice::cli {

/// How a command's model is named where it lies on the hub: hf:USER/REPO[:QUANT].
inline constexpr const char* kHubScheme = "hf:";

/// Adds -m, and --hf and its relatives, which set `model` to a name with kHubScheme.
void add_model_option(CLI::App& command, std::string& model,
                      const std::string& help = "GGUF file; without it the bundled model");
/// Adds the flags of the hub alone, beside the option that sets `model` to a path.
void add_hub_options(CLI::App& command, std::string& model, CLI::Option& path);
/// Both for several models.
void add_models_option(CLI::App& command, std::vector<std::string>& models, const std::string& help);

/// The settings of the environment with this program's name.
hub::Settings hub_settings();
/// What suits this machine, and what Sluice reads.
hub::Taste hub_taste();
/// Lines and a bar on standard error; where that is no terminal, a line each tenth of the way.
hub::Listener hub_listener();

/// A path as it is; of a name with kHubScheme the file in the cache, fetched if it is not there. Throws
/// Error.
std::string local_path(const std::string& model);

/// "fetching  [#####     ]  50 %  8.60 GB of 17.20 GB  85.00 MB/s, 1:41 left"; a rate of 0 is not known.
std::string fetching_text(const hub::Progress& progress, double bytes_per_second);

}  // namespace sluice::cli
