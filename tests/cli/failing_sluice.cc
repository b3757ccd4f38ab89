// With src/cli/main.cc the program sluice, whose device fails once the process has got SIGUSR1: the linker
// puts failing_step where Batcher::step is called (tests/CMakeLists.txt).
#include <atomic>
#include <csignal>

#include "base/error.h"
#include "engine/batcher.h"

namespace sluice::engine {
namespace {

std::atomic<bool> broken = false;
[[maybe_unused]] const auto before = std::signal(SIGUSR1, [](int) { broken = true; });

}  // namespace

using Flag = const std::atomic<bool>*;
bool real_step(Batcher* batcher, Flag stop,
               Flag pause) asm("__real__ZN6sluice6engine7Batcher4stepEPKSt6atomicIbES5_");
bool failing_step(Batcher* batcher, Flag stop,
                  Flag pause) asm("__wrap__ZN6sluice6engine7Batcher4stepEPKSt6atomicIbES5_");

bool failing_step(Batcher* batcher, Flag stop, Flag pause) {
  if (broken) throw Error("the device is gone");
  return real_step(batcher, stop, pause);
}

}  // namespace sluice::engine
