// Which CPUs threads run on, where the system lets a program choose.
#pragma once

#include <thread>
#include <vector>

namespace sluice {

/// The CPUs that this process may use, in ascending order; empty where the system does not say.
std::vector<int> usable_cpus();

/// Keeps a thread on one CPU. A refusal (a cpuset that shrank meanwhile) leaves it where the system wants it.
void pin(std::thread& thread, int cpu);

}  // namespace sluice
