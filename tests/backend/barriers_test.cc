// Where the CPU backend's team meets: wherever another worker's result is needed or its memory reused, and
// nowhere else.
#include "backend/cpu/barriers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/builder.h"
#include "program/op_info.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

std::vector<std::string> barriers_of(const Program& program, int window) {
  const MemoryPlan plan = plan_memory(program, 8, 8, window);
  const std::vector<bool> barriers = barriers_before(program, plan, 8, 8);
  std::vector<std::string> names;
  for (size_t i = 0; i < barriers.size(); ++i) {
    names.push_back(std::string(barriers[i] ? "| " : "") + info(program.ops()[i]).name);
  }
  return names;
}

TEST(Barriers, StandWhereAnotherWorkersResultIsNeeded) {
  Program program;
  Builder b(program);
  const auto weight = [&](int64_t rows, int64_t columns) {
    return b.weight("w", quant::Type::F32, 1, rows, columns);
  };
  const TensorId cache = b.cache(2, 96, quant::Type::F16);
  const TensorId x = b.embed(weight(100, 64));
  const TensorId h = b.rms_norm(x, weight(1, 64), 1e-5f);  // the same row on the same worker
  const TensorId a = b.matmul(h, weight(64, 64));          // every worker needs every row
  const TensorId c = b.matmul(h, weight(96, 64));          // independent of the first product
  const TensorId latent = b.rms_norm(b.columns(c, "latent", 0, 64), weight(1, 64), 1e-5f);
  const TensorId key = b.activation("key", kStepRows, 1, 32);
  b.rope(b.columns(c, "key_in", 64, 32), {}, key);
  b.kv_append(latent, key, cache, 0);
  b.mla_attend(b.matmul(a, weight(192, 64), 2), cache, 64, 1.0f, 0);
  EXPECT_THAT(barriers_of(program, 100),
              testing::ElementsAre("embed", "rms_norm", "| matmul", "matmul", "| rms_norm", "rope",
                                   "kv_append", "matmul", "| mla_attend"));
}

TEST(Barriers, DisjointColumnsOfOneTensorDoNotMeet) {
  Program program;
  Builder b(program);
  const TensorId q = b.activation("q", kStepRows, 2, 96);
  const TensorId out = b.activation("out", kStepRows, 2, 96);
  b.head_matmul(b.columns(q, "nope", 0, 64), b.weight("k_b", quant::Type::F32, 2, 64, 64), Reduce::Columns,
                b.columns(out, "latent", 0, 64));
  b.rope(b.columns(q, "rope", 64, 32), {}, b.columns(out, "turned", 64, 32));
  b.silu_mul(out, out);
  EXPECT_THAT(barriers_of(program, 100), testing::ElementsAre("head_matmul", "rope", "| silu_mul"));
}

TEST(Barriers, OfGroupedAttentionStandAroundItsProductsAndTheCache) {
  Program program;
  Builder b(program);
  const auto weight = [&](int64_t rows, int64_t columns) {
    return b.weight("w", quant::Type::F32, 1, rows, columns);
  };
  const TensorId cache = b.cache(1, 2 * (32 + 32), quant::Type::F16);
  const TensorId h = b.rms_norm(b.embed(weight(100, 64)), weight(1, 64), 1e-5f);
  const TensorId q = b.matmul(h, weight(128, 64), 4), k = b.matmul(h, weight(64, 64), 2);
  const TensorId v = b.add_bias(b.matmul(h, weight(64, 64)), weight(1, 64));
  const TensorId key = b.activation("key", kStepRows, 2, 32), query = b.activation("query", kStepRows, 4, 32);
  b.rope(b.rms_norm(k, weight(1, 32), 1e-5f), {}, key);
  b.kv_append(b.flatten(key), v, cache, 0);  // every worker writes the rows that it turned
  b.rope(q, {}, query);
  b.matmul(b.attend(query, cache, 2, 32, 1.0f, 0), weight(64, 128));
  EXPECT_THAT(barriers_of(program, 100),
              testing::ElementsAre("embed", "rms_norm", "| matmul", "matmul", "matmul", "| add_bias",
                                   "rms_norm", "rope", "kv_append", "rope", "| attend", "| matmul"));
}

TEST(Barriers, ViewsOfOtherHeadsMeet) {
  Program program;
  Builder b(program);
  const TensorId x = b.activation("x", kStepRows, 2, 64);
  const TensorId second_head = b.columns(b.flatten(x), "second_head", 64, 64);
  b.head_matmul(b.activation("in", kStepRows, 2, 32), b.weight("w", quant::Type::F32, 2, 32, 32),
                Reduce::Columns, b.columns(x, "front_of_both", 0, 32));
  b.silu_mul(second_head, second_head);
  EXPECT_THAT(barriers_of(program, 100), testing::ElementsAre("head_matmul", "| silu_mul"));
}

TEST(Barriers, StandBeforeAndAfterAnOpWhoseWorkersShareTheirScratch) {
  Program program;
  Builder b(program);
  const TensorId cache = b.cache(1, 96, quant::Type::F16);
  const TensorId x = b.embed(b.weight("table", quant::Type::F32, 1, 100, 64));
  // Neither of its neighbours has anything to do with it: only scratch is shared.
  b.mla_attend(b.activation("q", kStepRows, 2, 96), cache, 64, 1.0f, 0);
  b.rms_norm(x, b.weight("w", quant::Type::F32, 1, 1, 64), 1e-5f);
  EXPECT_THAT(barriers_of(program, 100), testing::ElementsAre("embed", "| mla_attend", "| rms_norm"));
}

TEST(Barriers, StandBeforeMemoryIsReused) {
  // A chain of row-wise ops needs no barrier for its results, but it does where a new tensor lies on an old
  // one.
  Program program;
  Builder b(program);
  TensorId x = b.embed(b.weight("table", quant::Type::F32, 1, 100, 64));
  for (int i = 0; i < 3; ++i) x = b.rms_norm(x, b.weight("w", quant::Type::F32, 1, 1, 64), 1e-5f);
  EXPECT_THAT(barriers_of(program, 100), testing::ElementsAre("embed", "rms_norm", "rms_norm", "rms_norm"));
  EXPECT_THAT(barriers_of(program, 0), testing::ElementsAre("embed", "rms_norm", "| rms_norm", "| rms_norm"));
}

}  // namespace
}  // namespace sluice::backend::cpu
