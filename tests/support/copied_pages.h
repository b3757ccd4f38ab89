// Pages and states of a sequence that go to the host's memory and come back (program/page_copier.h).
#pragma once

#include <tuple>
#include <vector>

#include "support/golden_cases.h"

namespace sluice::test {

/// What the token behind a page of others gives, once that page has been to the host's memory and back to
/// another place of the cache, and the state beside it to another slot.
inline std::vector<float> logits_by_copies(const Golden& golden, program::Backend& backend, bool copy) {
  const model::Model model = model::Model::load(golden.model);
  const auto executable =
      backend.compile(model.program, model.weights, {.max_rows = 64, .cache_pages = 4, .state_slots = 6});
  engine::Batch batch(64, 1, 2);
  const int32_t first_pages[] = {0, 1}, other_pages[] = {2, 3};
  batch.set_pages(0, first_pages);
  batch.set_state(0, {0, 1});
  for (int32_t i = 0; i < 64; ++i)
    batch.add(golden.tokens[static_cast<size_t>(i) % golden.tokens.size()], i, 0, false);
  run_step(*executable, batch.step());
  if (copy) {
    program::PageCopier* const copier = executable->copier();
    for (const auto& [what, from, to] :
         {std::tuple(program::Kept::Page, 0, 2), std::tuple(program::Kept::State, 1, 4)}) {
      const int64_t bytes = copier->bytes(what);
      if (bytes == 0) continue;
      const auto memory = copier->memory(bytes);
      copier->wait(copier->begin_read(what, from, memory.get()));
      copier->wait(copier->begin_write(what, to, memory.get()));
    }
  }
  batch.clear();
  batch.set_pages(0, copy ? other_pages : first_pages);
  batch.set_state(0, {copy ? 4 : 1, 3});
  batch.add(golden.tokens[0], 64, 0, true);
  const program::StepResult result = run_step(*executable, batch.step());
  return {result.outputs[0].logits.begin(), result.outputs[0].logits.end()};
}

}  // namespace sluice::test
