// Models of the hub as files of this machine: found in the cache, or fetched into it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/cache.h"
#include "hub/choice.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/settings.h"

namespace sluice::hub {

struct Progress {
  std::string name;  ///< "USER/REPO:QUANT"
  int64_t done_bytes = 0, total_bytes = 0;
};

/// What a pull says while it runs; both may be empty.
struct Listener {
  std::function<void(const Progress&)> progress;
  std::function<void(const std::string&)> tell;  ///< a line for the user
};

/// What the hub has of a repository at revision main. Throws Error when it tells names or hashes that are
/// none.
Revision revision_of(Http& http, const Settings& settings, const Repository& repository,
                     const Listener& listener);

/// The path of a model's first file, after what is missing was fetched, checked and linked. Asks the hub in
/// any case. Throws Error.
std::filesystem::path pull(const Settings& settings, const ModelName& name, const Taste& taste,
                           const Listener& listener);

/// The same, and nobody is asked where the cache has the model.
std::filesystem::path find_or_pull(const Settings& settings, const ModelName& name, const Taste& taste,
                                   const Listener& listener);

}  // namespace sluice::hub
