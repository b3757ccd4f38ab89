// The places backend: a model over several devices, each of which runs a part of every op by the executable
// of a backend of its own (program/places.h). To the engine it is one device like any other. Knows no device:
// what it asks of their backends is that they run a step part by part (Facts::parts).
#pragma once

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

}  // namespace sluice::backend
