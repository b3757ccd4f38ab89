#include "backend/cuda/host/step_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace sluice::backend::cuda {

using namespace program;

namespace {

constexpr int64_t kAlignBytes = 256, kAlignSlots = 32;

int64_t aligned(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
int64_t slots_of(int64_t bytes) { return aligned((bytes + 7) / 8, kAlignSlots); }

/// Whether both name the same numbers of a row.
bool same_value(const Program& program, TensorId a, TensorId b) {
  const auto size = [&](TensorId id) { return program[id].heads() * program[id].columns(); };
  return program.storage(a) == program.storage(b) && program[a].offset == program[b].offset &&
         size(a) == size(b);
}

bool is_zeroed(const Passed& one) { return form_info(one.form).space == FormSpace::Zeroed; }

/// Tells launches which of the plan's forms are theirs.
void tell_launches(StepPlan& plan) {
  for (StepPlan::Launch& launch : plan.launches) launch.produces = launch.consumes = std::nullopt;
  for (size_t n = 0; n < plan.passed.size(); ++n) {
    plan.launches[plan.passed[n].producer].produces = n;
    plan.launches[plan.passed[n].consumer].consumes = n;
  }
}

/// The nodes of those that produce forms in zeroed slots.
std::vector<size_t> zeroed_nodes(const StepPlan& plan) {
  std::vector<size_t> nodes;
  for (const Passed& one : plan.passed)
    if (is_zeroed(one)) nodes.push_back(plan.launches[one.producer].node);
  return nodes;
}

}  // namespace

const FormInfo& form_info(Form form) {
  static constexpr std::array<FormInfo, 7> kForms = {{{"a row in codes", FormSpace::Memory},
                                                      {"rows in codes", FormSpace::Memory},
                                                      {"rows for a norm in codes", FormSpace::Memory},
                                                      {"order of experts", FormSpace::Memory},
                                                      {"selected experts", FormSpace::Flagged},
                                                      {"sums of the router", FormSpace::Zeroed},
                                                      {"sum of experts", FormSpace::Result}}};
  return kForms[static_cast<size_t>(form)];
}

void match_forms(const Program& program, const Sizes& sizes, StepPlan& plan) {
  const auto declared = [&](auto declare, size_t i) {
    return declare != nullptr ? declare(program, *plan.launches[i].op, sizes) : std::nullopt;
  };
  for (size_t i = 0; i + 1 < plan.launches.size(); ++i) {
    const std::optional<FormSpec> given = declared(plan.launches[i].kernel->produces, i);
    if (!given) continue;
    const std::optional<FormSpec> taken = declared(plan.launches[i + 1].kernel->consumes, i + 1);
    if (!taken || taken->form != given->form || !same_value(program, taken->value, given->value)) continue;
    CHECK(given->bytes == 0 || taken->bytes == 0 || given->bytes == taken->bytes, "{}: {} and {} bytes",
          form_info(given->form).name, given->bytes, taken->bytes);
    plan.passed.push_back({given->form, i, i + 1, std::max(given->bytes, taken->bytes)});
  }
  // Words of a pair are made zero by the consumer of the next pair.
  if (std::ranges::count_if(plan.passed, is_zeroed) < 2) std::erase_if(plan.passed, is_zeroed);
  tell_launches(plan);
}

void keep_same_pairs(const std::vector<StepPlan*>& plans) {
  // A step's last words are made zero by the next step, which may have other sizes but no other pairs.
  std::vector<size_t> all;
  for (StepPlan* plan : plans) {
    const std::vector<size_t> nodes = zeroed_nodes(*plan);
    if (all.empty()) all = nodes;
    if (nodes.empty() || nodes == all) continue;
    std::erase_if(plan->passed, is_zeroed);
    tell_launches(*plan);
  }
}

PlanMemory place(const Program& program, const std::vector<std::pair<Sizes, StepPlan*>>& plans) {
  PlanMemory memory;
  std::map<std::tuple<const Kernel*, int64_t, int64_t>, int64_t> own;  // by kernel, words and layout
  std::map<size_t, int64_t> pairs;                                     // by the producer's node
  const auto take_zeroed = [&](auto& places, const auto& key, int64_t slots) {
    const auto [found, added] = places.try_emplace(key, memory.zeroed_slots);
    if (added) memory.zeroed_slots += slots;
    return found->second;
  };
  std::vector<int64_t> all_pairs;
  for (const auto& [sizes, plan] : plans) {
    for (StepPlan::Launch& launch : plan->launches) {
      const Kernel& kernel = *launch.kernel;
      if (kernel.scratch_bytes != nullptr)
        memory.scratch_bytes =
            std::max(memory.scratch_bytes, kernel.scratch_bytes(program, *launch.op, sizes));
      if (kernel.mailbox == nullptr) continue;
      const MailboxNeeds needs = kernel.mailbox(program, *launch.op, sizes);
      memory.flagged_slots = std::max(memory.flagged_slots, aligned(needs.flagged, kAlignSlots));
      if (needs.zeroed > 0)
        launch.zeroed = take_zeroed(own, std::tuple(&kernel, needs.zeroed, needs.layout),
                                    aligned(needs.zeroed, kAlignSlots));
    }
    std::vector<Passed*> zeroed;
    std::vector<int64_t> places;
    for (Passed& one : plan->passed) {
      switch (form_info(one.form).space) {
        case FormSpace::Memory:
          memory.form_bytes = std::max(memory.form_bytes, aligned(one.bytes, kAlignBytes));
          break;
        case FormSpace::Result: break;
        case FormSpace::Flagged: memory.form_slots = std::max(memory.form_slots, slots_of(one.bytes)); break;
        case FormSpace::Zeroed:
          one.at = take_zeroed(pairs, plan->launches[one.producer].node, slots_of(one.bytes));
          zeroed.push_back(&one);
          places.push_back(one.at);
          break;
      }
    }
    if (zeroed.empty()) continue;
    if (all_pairs.empty()) all_pairs = places;  // keep_same_pairs
    CHECK(places == all_pairs, "{} and {} pairs", places.size(), all_pairs.size());
    for (size_t n = 0; n < zeroed.size(); ++n)
      zeroed[n]->clear = places[(n + places.size() - 1) % places.size()];
  }
  for (const auto& [sizes, plan] : plans) {
    for (Passed& one : plan->passed) {
      const auto odd = static_cast<int64_t>(one.producer % 2);
      if (form_info(one.form).space == FormSpace::Memory) one.at = odd * memory.form_bytes;
      if (form_info(one.form).space == FormSpace::Flagged) one.at = odd * memory.form_slots;
    }
  }
  return memory;
}

}  // namespace sluice::backend::cuda
