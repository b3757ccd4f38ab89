// What this machine reaches at best: reading memory, and multiplying in registers. Shares in benchmarks and
// profiles are shares of these.
#pragma once

#include <memory>

#include "program/backend.h"

namespace sluice::backend::cpu {

/// The machine's peaks with this many threads and the process's instruction tier. The first call measures for
/// two or three seconds, later ones remember. Not to be called by several threads at once.
const program::Peaks& machine_peaks(int threads);

/// Bytes a second that reading reaches now, measured anew with the loop that was best before.
double measure_read_bandwidth(int threads);

/// All loops in turns, over memory that is kept from reading to reading.
std::unique_ptr<program::BandwidthProbe> make_bandwidth_probe(int threads);

}  // namespace sluice::backend::cpu
