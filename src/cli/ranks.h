// A model over several processes (--tensor-parallel, --pipeline-parallel): which of them this one is, and how
// they find each other.
#pragma once

#include <memory>
#include <string>

#include "cli/assemble.h"
#include "cli/cli11.h"

namespace sluice::cli {

/// Adds --tensor-parallel, --pipeline-parallel and --transport.
void add_rank_options(CLI::App& command, RankOptions& options);

/// What every rank loads.
struct RankModel {
  std::string path, backend;
  int threads = 0;
  bool no_repack = false;
  quant::Type cache = quant::Type::F16;
};

/// Whether this process is another rank than the first: then it has followed that one to its end, and there
/// is nothing left to do. Throws Error when a rank is gone or does not fit.
bool follows(const RankOptions& options, const RankModel& model);

/// Rank 0's backend, once all others have come; they have called follows(). fit: of layers that are dealt
/// out, how each rank's GPU shares them with its CPU.
std::unique_ptr<program::Backend> make_ranks_backend(const RankOptions& options, const std::string& backend,
                                                     int threads, const Loading& loading,
                                                     const model::Model& model, const Fit& fit);

/// Nanoseconds that rank 0 has spent so far on what goes between ranks' hosts, or on sums that devices make
/// themselves, waiting for others included; 0 where there are no ranks. While no step runs.
int64_t rank_exchange_ns();

/// Why no step runs any more: a rank that is gone. Empty: all is well, or there are no ranks.
std::string rank_failure();

}  // namespace sluice::cli
