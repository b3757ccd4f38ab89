// The instruction tiers that this machine can run, for tests that go through all of them in one process.
#pragma once

#include "backend/cpu/isa.h"

namespace sluice::test {

using backend::cpu::usable_isas;

}  // namespace sluice::test
