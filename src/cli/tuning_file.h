// The per-machine file of tuned values: what `sluice tune` found, read whenever a backend is made.
#pragma once

#include <string>
#include <vector>

#include "profile/tuner.h"
#include "program/backend.h"

namespace sluice::cli {

/// $SLUICE_TUNING; without it sluice/tuning.json in $XDG_CACHE_HOME or ~/.cache; "" where there is no home.
std::string tuning_path();

/// The values that were measured on this device (Backend::device); none when there is no file. A file that is
/// damaged, or that knows the device with other kernels only, is ignored: one line on standard error, once.
program::Tuning read_tuning(const std::string& path, const std::string& device);

/// Keeps the device's choices that differ from the built-in ones, and what other devices have. Throws Error
/// when the file cannot be written.
void write_tuning(const std::string& path, const std::string& device,
                  const std::vector<profile::Choice>& choices);

}  // namespace sluice::cli
