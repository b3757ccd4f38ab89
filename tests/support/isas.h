// The instruction tiers that this machine can run, for tests that go through all of them in one process.
#pragma once

#include <vector>

#include "backend/cpu/isa.h"

namespace sluice::test {

inline std::vector<backend::cpu::Isa> usable_isas() {
  using backend::cpu::Isa;
  std::vector<Isa> list;
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (isa <= backend::cpu::best_isa()) list.push_back(isa);
  }
  return list;
}

}  // namespace sluice::test
