// The golden cases with their limits, and a model's logits on any backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "support/golden.h"

namespace sluice::test {

/// Logits of all tokens as one sequence, at most `rows` a step: cut(begin) of them in the step that begins
/// there.
inline std::vector<float> logits_in_steps(const Golden& golden, program::Executable& executable, int64_t rows,
                                          const std::function<int64_t(int64_t)>& cut) {
  const auto count = static_cast<int64_t>(golden.tokens.size());
  const auto pages = static_cast<int32_t>(engine::KvPool::pages_for(count));
  engine::KvPool pool(pages);
  std::vector<int32_t> table;
  EXPECT_TRUE(pool.reserve(table, count));
  engine::Batch batch(rows, 1, pages);
  batch.set_pages(0, table);
  std::vector<float> logits(static_cast<size_t>(count * golden.vocabulary));
  program::StateSlots state;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    end = std::min(count, begin + cut(begin));
    batch.clear();
    batch.set_state(0, state);
    std::swap(state.from, state.to);  // what a step leaves, the next one reads
    for (int64_t i = begin; i < end; ++i) {
      batch.add(golden.tokens[static_cast<size_t>(i)], static_cast<int32_t>(i), 0, true);
    }
    run_logits(executable, batch.input(),
               std::span(logits).subspan(static_cast<size_t>(begin * golden.vocabulary),
                                         static_cast<size_t>(batch.rows() * golden.vocabulary)));
  }
  return logits;
}
/// The same by this model on a backend.
inline std::vector<float> logits_in_steps(const Golden& golden, const model::Model& model,
                                          program::Backend& backend, int64_t rows,
                                          const std::function<int64_t(int64_t)>& cut,
                                          bool batch_invariant = false) {
  const auto pages =
      static_cast<int32_t>(engine::KvPool::pages_for(static_cast<int64_t>(golden.tokens.size())));
  const auto executable = backend.compile(
      model.program, model.weights,
      {.max_rows = rows, .max_outputs = rows, .cache_pages = pages, .batch_invariant = batch_invariant});
  return logits_in_steps(golden, *executable, rows, cut);
}
/// The same, `rows` a step.
inline std::vector<float> logits_of(const Golden& golden, const model::Model& model,
                                    program::Backend& backend, int64_t rows, bool batch_invariant = false) {
  return logits_in_steps(
      golden, model, backend, rows, [&](int64_t) { return rows; }, batch_invariant);
}
/// The same with a cache of this type.
inline std::vector<float> logits_of(const Golden& golden, program::Backend& backend, int64_t rows,
                                    quant::Type cache = quant::Type::F16, bool batch_invariant = false) {
  return logits_of(golden, model::Model::load(golden.model, cache), backend, rows, batch_invariant);
}

/// The limits of tests/golden/README.md: mean KL over the best 90% of rows, of a fast backend, and of a
/// float32 one with a cache of eight bits.
struct Case {
  const char* name;
  double kl_limit;
  const char* oracle = nullptr;  ///< the model of tools/oracles whose logits a file of that script must give
  double cache_limit = 0;        ///< 0: not simulated
  const char* script = "make.py";
};
inline constexpr const char* kMoe = "make_moe.py";
inline constexpr const char* kHybrid = "make_hybrid.py";

inline Golden read_case(const Case& c) {
  return c.oracle == nullptr ? golden_case(c.name, c.script) : oracle_case(c.name, c.oracle);
}

inline constexpr Case kCases[] = {{"glm-q4_0", 0.0012, nullptr, 1.97e-4},
                                  {"glm-q4_k_m", 0.0004, nullptr, 3.66e-5},
                                  {"glm-rotate", 0.0005, nullptr, 4.97e-5},
                                  {"glm-mxfp4", 0.0006, nullptr, 1.91e-4},
                                  {"lite-q4_k_m-yarn", 0.0005, nullptr, 1.58e-4},
                                  {"lite-legacy-kv_b", 0.0003, nullptr, 4.98e-5},
                                  {"youtu-q4_0", 0.0022, nullptr, 5.91e-4},
                                  {"v3-groups", 0.0004, nullptr, 7.12e-5},
                                  {"qwen3moe-q4_0", 0.002, nullptr, 0, kMoe},
                                  {"qwen3moe-q4_k_m", 0.002, nullptr, 0, kMoe},
                                  {"glm4moe-q4_k_m", 0.002, nullptr, 0, kMoe},
                                  {"glm4moe-q8_0-air", 0.002, nullptr, 0, kMoe},
                                  {"qwen3moe-nvfp4", 0.002, nullptr, 0, kMoe},
                                  {"glm4moe-nvfp4", 0.002, nullptr, 0, kMoe},
                                  {"gpt-oss-mxfp4", 0.002, nullptr, 0, kMoe},
                                  {"gpt-oss-q8_0", 0.002, nullptr, 0, kMoe},
                                  {"qwen3next-q4_k_m", 0.002, nullptr, 0, kHybrid},
                                  {"qwen3next-q8_0", 0.002, nullptr, 0, kHybrid},
                                  {"qwen3next-nvfp4", 0.002, nullptr, 0, kHybrid},
                                  {"qwen35moe-q4_k_m", 0.002, nullptr, 0, kHybrid},
                                  {"qwen35-q8_0", 0.002, nullptr, 0, kHybrid},
                                  {"kimi-linear-q4_k_m", 0.002, nullptr, 0, kHybrid},
                                  {"kimi-linear-q8_0", 0.002, nullptr, 0, kHybrid},
                                  {"moonlight", 0.00062, "moonlight", 5.36e-5},
                                  {"kanana-2", 0.0021, "kanana-2", 1.71e-4},
                                  {"gigachat3", 0.0018, "gigachat3", 2.67e-4},
                                  {"joyai", 0.0035, "joyai", 1.55e-3},
                                  {"kimi-k2", 0.0118, "kimi-k2", 6.48e-3},
                                  {"mistral4", 0.002, "mistral4"},
                                  {"llama", 0.0011, "llama"},
                                  {"llama3", 0.0017, "llama3"},
                                  {"llama-linear", 0.0011, "llama-linear"},
                                  {"qwen2", 0.0008, "qwen2"},
                                  {"qwen3", 0.0009, "qwen3"},
                                  {"qwen3-yarn", 0.0009, "qwen3-yarn"},
                                  {"v2-groups", 0.0023, "v2-groups", 2.23e-4},
                                  {"v2-groups-no-gating", 0.0023, "v2-groups", 2.23e-4},
                                  {"llama-outliers", 0.0004, "llama-outliers"},
                                  {"glm-outliers", 0.0009, "glm-outliers", 3.91e-6},
                                  {"glm", 0.0014, "glm", 1.44e-4},
                                  {"glm-fused", 0.0014, "glm", 1.44e-4},
                                  {"glm-unsplit", 0.0014, "glm", 1.44e-4},
                                  {"glm-ollama", 0.0014, "glm", 1.44e-4},
                                  {"glm-ik", 0.0014, "glm", 1.44e-4},
                                  {"glm-widths", 0.0014, "glm", 1.44e-4},
                                  {"glm-scaled", 0.0014, "glm", 1.44e-4},
                                  {"glm-no-gating", 0.0014, "glm", 1.44e-4},
                                  {"glm-mtp", 0.0014, "glm", 1.44e-4},
                                  {"glm-split", 0.0014, "glm", 1.44e-4}};

}  // namespace sluice::test
