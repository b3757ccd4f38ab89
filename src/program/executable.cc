#include "program/executable.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::program {

void Executable::run_part(const Step&, size_t) { CHECK(false, "this backend runs whole steps"); }

void run_logits(Executable& executable, const StepInput& input, std::span<float> logits) {
  auto to = logits.begin();
  for (const RowResult& row : run_step(executable, {.input = input}).outputs)
    to = std::ranges::copy(row.logits, to).out;
}

}  // namespace sluice::program
