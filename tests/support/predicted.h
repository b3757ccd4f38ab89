// What a model's block of multi-token prediction says of a text, on any backends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "program/backend.h"
#include "support/golden_cases.h"

namespace sluice::test {

/// Files with a block, and the limit of divergence of its logits from a plain model's
/// (tests/golden/README.md).
struct BlockCase {
  const char* name;
  double kl_limit;
  Golden golden() const {
    return std::string(name).starts_with("glm4moe") ? golden_case(name, kMoe) : oracle_case(name, name);
  }
};
inline constexpr BlockCase kBlocks[] = {
    {"glm-mtp", 0.0014}, {"glm-mtp-experts", 0.0014}, {"glm4moe-mtp", 0.002}, {"glm4moe-mtp-nvfp4", 0.002}};

/// A model with its block, both compiled beside each other.
struct ModelWithBlock {
  model::Model model;
  std::shared_ptr<const program::WeightSet> weights;
  std::unique_ptr<program::Executable> trunk, block;

  ModelWithBlock(program::Backend& backend, const std::string& path, const program::CompileOptions& options)
      : model(model::Model::load(path)) {
    EXPECT_EQ(model.add_prediction(), std::nullopt);
    const program::Source sources[] = {{model.program, model.weights},
                                       {model.prediction->program, model.prediction->weights}};
    weights = backend.load(sources, {});
    trunk = backend.compile(sources[0], weights, options);
    program::CompileOptions own = options;
    own.aside_rows = 0;
    own.beside = trunk.get();
    block = backend.compile(sources[1], weights, own);
  }
};

/// Steps of so many rows of a text through the trunk and, with the tokens behind them, the block, each on a
/// backend: all logits that the block gives, a row fewer than there are tokens.
inline std::vector<float> predicted(const std::string& path, std::span<const int32_t> tokens,
                                    program::Backend& trunks, program::Backend& blocks, int64_t rows) {
  const auto pages = static_cast<int32_t>(engine::KvPool::pages_for(std::ssize(tokens)));
  const program::CompileOptions options{.max_rows = rows, .max_outputs = rows, .cache_pages = pages};
  ModelWithBlock one(trunks, path, options), other(blocks, path, options);
  program::Executable& trunk = *one.trunk;
  const bool together = &trunks == &blocks;
  program::Executable& block = together ? *one.block : *other.block;
  engine::KvPool pool(pages);
  std::vector<int32_t> table;
  EXPECT_TRUE(pool.reserve(table, std::ssize(tokens)));
  engine::Batch batch(rows, 1, pages);
  std::vector<float> all, hidden;
  const auto last = std::ssize(tokens) - 1;
  for (int64_t first = 0; first < last; first += rows) {
    const auto step = [&](int64_t ahead) {
      batch.clear();
      batch.set_pages(0, table);
      for (int64_t at = first; at < std::min(last, first + rows); ++at)
        batch.add(tokens[static_cast<size_t>(at + ahead)], static_cast<int32_t>(at), 0, ahead > 0);
      return batch.step();
    };
    run_step(trunk, step(0));
    if (together) {
      std::vector<program::Executable::RowCopy> copies;
      for (int64_t r = 0; r < batch.rows(); ++r) copies.push_back({r, r});
      block.take_rows(trunk, trunk.program().hidden_out(), copies);
    } else {
      hidden.resize(static_cast<size_t>(batch.rows() * one.model.spec.dim));
      trunk.peek(trunk.program().hidden_out(), batch.rows(), hidden);
      block.poke(block.program().hidden_in(), batch.rows(), hidden);
    }
    for (const program::RowResult& row : run_step(block, step(1)).outputs)
      all.insert(all.end(), row.logits.begin(), row.logits.end());
  }
  return all;
}

}  // namespace sluice::test
