// How a process learns which of several it is: by the variables that what started them leaves in its
// environment. Knows no connection.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sluice::backend {

struct Launch {
  int rank = 0, ranks = 1;
  int local_rank = 0;     ///< among those of this host
  int local_ranks = 0;    ///< of this host; 0: nobody says
  std::string starter;    ///< whose variables these are, for messages
  bool open_mpi = false;  ///< OpenMPI's mpirun: by MPI its processes find each other
  std::string address;    ///< rank 0's, from MASTER_ADDR; empty: this host
  int port = 0;           ///< rank 0's, from MASTER_PORT; 0: nobody says

  /// Whether some of the others may be on other hosts.
  bool several_hosts() const { return local_ranks > 0 ? local_ranks < ranks : !address.empty(); }
};

/// A variable's value; null: it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Nothing: this process was started alone. Throws UsageError for values that make no sense.
std::optional<Launch> read_launch(const Environment& environment);

}  // namespace sluice::backend
