// How a command's model gets into memory: the flags for it, and a bar on a terminal while weights are loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cli/assemble.h"
#include "cli/cli11.h"

namespace sluice::cli {

/// Adds --no-repack, which sets no_repack.
void add_loading_option(CLI::App& command, bool& no_repack);

/// The type of a cache by the name that users know it by (f16, q8_0). Throws UsageError for any other.
quant::Type cache_type_of(const std::string& name);
std::string cache_type_name(quant::Type type);

/// Adds --cache-type, which sets `type`.
void add_cache_option(CLI::App& command, quant::Type& type);

/// Draws a bar on standard error while weights are loaded, if that is a terminal; otherwise nothing.
program::Progress loading_bar();

/// "WHAT  [#####     ]  50 %  8.60 GB of 17.20 GB".
std::string progress_bar_text(std::string_view what, int64_t done_bytes, int64_t total_bytes);
std::string loading_bar_text(int64_t done_bytes, int64_t total_bytes);

}  // namespace sluice::cli
