// The places backend: a model over several devices, each of which runs a part of every op by the executable
// of a backend of its own (program/places.h). To the engine it is one device like any other. Knows no device:
// what it asks of their backends is that they run a step part by part (Facts::parts).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program/backend.h"

namespace sluice::backend {

/// A device and its share of the work. Several places may be of one backend: they share what it loads.
struct Place {
  std::shared_ptr<program::Backend> backend;
  double share = 1;
};

/// Throws Error where a backend cannot be one place of several.
std::unique_ptr<program::Backend> make_places_backend(std::vector<Place> places);

/// A model of which `first` runs everything but the routed experts of the last `mixtures` mixtures of
/// experts, which `second` runs (program/offload.h). What first takes at most is `bytes`: of its memory alone
/// memory_needs() and available_bytes() speak. Throws Error as above.
std::unique_ptr<program::Backend> make_offload_backend(std::shared_ptr<program::Backend> first,
                                                       std::shared_ptr<program::Backend> second,
                                                       size_t mixtures, int64_t bytes);

}  // namespace sluice::backend
