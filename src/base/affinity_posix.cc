#include "base/affinity.h"

namespace sluice {

std::vector<int> usable_cpus() { return {}; }
void pin(std::thread&, int) {}

}  // namespace sluice
