#include "backend/ranks/launch.h"

#include <charconv>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace sluice::backend {
namespace {

/// By what names a starter tells a process its place. The first one whose two variables are there counts.
struct Starter {
  const char *name, *rank, *ranks, *local_rank, *local_ranks;
};
constexpr Starter kStarters[] = {
    {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};
constexpr int kMostRanks = 64;

std::optional<int> number(const Environment& environment, const char* name, int least, int most) {
  const char* const text = name != nullptr ? environment(name) : nullptr;
  if (text == nullptr || *text == '\0') return {};
  const std::string_view view = text;
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < least || value > most)
    throw UsageError(fmt::format("{}={}: expected a number from {} to {}", name, text, least, most));
  return value;
}

/// Whether an address of rank 0 says that all ranks are on this host.
bool is_this_host(std::string_view address) {
  return address.empty() || address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace

std::optional<Launch> read_launch(const Environment& environment) {
  for (const Starter& starter : kStarters) {
    const auto ranks = number(environment, starter.ranks, 1, std::numeric_limits<int>::max());
    if (!ranks || *ranks == 1) continue;
    if (*ranks > kMostRanks)
      throw UsageError(fmt::format("{}={}: {} ranks at most", starter.ranks, *ranks, kMostRanks));
    const auto rank = number(environment, starter.rank, 0, *ranks - 1);
    if (!rank) continue;
    Launch launch{.rank = *rank, .ranks = *ranks, .starter = starter.name};
    launch.open_mpi = environment("OMPI_COMM_WORLD_SIZE") != nullptr;
    if (const char* address = environment("MASTER_ADDR"); address != nullptr) launch.address = address;
    const auto local_rank = number(environment, starter.local_rank, 0, *ranks - 1);
    launch.local_ranks = number(environment, starter.local_ranks, 1, *ranks).value_or(0);
    // Where nobody numbers a host's ranks, those that meet on this host are all its own.
    const bool one_host =
        number(environment, "SLURM_NNODES", 1, 1 << 20) == 1 || (!local_rank && is_this_host(launch.address));
    if (launch.local_ranks == 0 && one_host) launch.local_ranks = *ranks;
    launch.local_rank = local_rank.value_or(launch.local_ranks == *ranks ? *rank : 0);
    launch.port = number(environment, "MASTER_PORT", 1, 65535).value_or(0);
    return launch;
  }
  return {};
}

}  // namespace sluice::backend
