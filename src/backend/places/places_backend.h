// The places backend: a model over several devices, each of which runs a part of every op by the executable
// of a backend of its own (program/places.h). To the engine it is one device like any other. Knows no device:
// what it asks of their backends is that they run a step part by part (Facts::parts).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program/backend.h"
#include "program/offload.h"

namespace sluice::backend {

/// A device and its share of the work. Several places may be of one backend: they share what it loads.
struct Place {
  std::shared_ptr<program::Backend> backend;
  double share = 1;
};

/// Throws Error where a backend cannot be one place of several.
std::unique_ptr<program::Backend> make_places_backend(std::vector<Place> places);

/// A model whose routed experts `second` runs, and everything else `first`. Of the first one's memory alone
/// memory_needs() and available_bytes() speak. Throws Error as above.
std::unique_ptr<program::Backend> make_offload_backend(std::shared_ptr<program::Backend> first,
                                                       std::shared_ptr<program::Backend> second,
                                                       const program::Offload& offload);

/// The same for a rank's side of a program whose layers were dealt out (program/places.h), which it runs part
/// by part: each of the side's stretches is a program of its own, and the one that has mixtures is shared.
std::unique_ptr<program::Backend> make_offload_side_backend(std::shared_ptr<program::Backend> first,
                                                            std::shared_ptr<program::Backend> second,
                                                            const program::Offload& offload);

/// Seconds that a step of so many rows took.
struct TimedRows {
  double rows = 0, seconds = 0;
};
/// From how many rows on it is sooner to stream: computing takes a time that grows by rows as it does between
/// `few` and `many`, streaming takes `stream_seconds` however many there are. No less than `few`, below which
/// nothing was measured: one row that streams takes many times as long. `most`, where it never is below.
int64_t break_even_rows(TimedRows few, TimedRows many, double stream_seconds, int64_t most);

}  // namespace sluice::backend
