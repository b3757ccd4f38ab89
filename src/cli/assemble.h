// The composition root: the one place that names concrete backends and the bundled model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "model/model.h"
#include "program/backend.h"

namespace sluice::cli {

/// "cpu", "cuda", "ref", or "auto": cuda where a device is there, otherwise cpu. threads (of cpu) 0: as many
/// as this process may use. With the values that `sluice tune` kept for this machine. Throws Error why there
/// is no cuda, UsageError for any other name.
std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads);
/// The same with these values.
std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads,
                                               const program::Tuning& tuning);

/// The backend that takes as long as hardware with these peaks needs at least.
std::unique_ptr<program::Backend> make_forecast_backend(const program::Peaks& peaks);

/// The folder of this program's file.
std::filesystem::path executable_folder();

/// Where the bundled model lies, found from the executable's own place: an installed tree's share folder or
/// the source tree's models folder. Throws Error that says where it looked.
std::string bundled_model_path();

/// The path that was given, or the bundled model's when it is empty.
std::string model_path_or_bundled(const std::string& path);

}  // namespace sluice::cli
