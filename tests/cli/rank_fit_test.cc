// How ranks whose layers do not fit their GPUs find what each leaves to its CPU, and hear of each other. A
// backend of the CPU stands in for the GPUs'.
#include "cli/rank_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "backend/places/places_backend.h"
#include "base/error.h"
#include "cli/assemble.h"
#include "engine/kv_pool.h"
#include "program/offload.h"
#include "program/places.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;

class RankFitTest : public testing::Test {
 protected:
  static constexpr int64_t kContext = 256;
  static constexpr int64_t kPlenty = int64_t{1} << 30;

  Fit asked(int64_t bytes, int64_t cache_mixtures = 0) const {
    return {.share = {.bytes = bytes, .stream_rows = -1, .cache_mixtures = cache_mixtures},
            .context = kContext};
  }
  Fitted fitted(int rank, const Fit& fit) const {
    return fit_side_to(*gpu, sides[static_cast<size_t>(rank)], model.spec.context, fit);
  }
  /// What a rank's GPU takes, fitted so; steps have 256 rows where there is no room for more.
  int64_t taken(int rank, const program::Offload& offload, int64_t rows = 512) const {
    const program::MemoryNeeds needs = backend::make_offload_side_backend(gpu, gpu, offload)
                                           ->memory_needs(sides[static_cast<size_t>(rank)],
                                                          {.max_rows = rows,
                                                           .cache_pages = engine::KvPool::pages_for(kContext),
                                                           .context = kContext,
                                                           .warm = true});
    return needs.weights_bytes + needs.cache_bytes + needs.scratch_bytes;
  }

  const model::Model model = model::Model::load(bundled_model_path());
  const std::shared_ptr<program::Backend> gpu = make_backend("cpu", 1);
  const program::Program dealt = program::deal_layers(model.program, 2);
  const std::vector<program::Program> sides{program::program_at(dealt, 0), program::program_at(dealt, 1)};
};

// Of rank 0 with the token table and the output matrix, which are no layer's.
TEST_F(RankFitTest, AsManyMixturesOfARankLeaveAsMust) {
  for (const int rank : {0, 1}) {
    const size_t all = program::routed_experts(sides[static_cast<size_t>(rank)]).size();
    ASSERT_GT(all, 1u);
    EXPECT_EQ(fitted(rank, asked(kPlenty)).mixtures, 0u);
    for (size_t away = 0; away <= all; ++away) {
      const int64_t least = taken(rank, {.mixtures = away});
      const Fitted found = fitted(rank, asked(least));
      EXPECT_EQ(found.mixtures, away) << rank;
      EXPECT_EQ(found.all_mixtures, all);
      EXPECT_EQ(found.bytes, least);
      if (away == all) continue;
      EXPECT_EQ(fitted(rank, asked(least - 1)).mixtures, away + 1) << "a byte less";
    }
    const int64_t least = taken(rank, {.mixtures = all}, 256);
    EXPECT_EQ(fitted(rank, asked(least)).rows, 256);
    EXPECT_THAT(error_of([&] { fitted(rank, asked(least - 1)); }),
                HasSubstr("even with all routed experts in the CPU's"));
  }
}

TEST_F(RankFitTest, CopiesOfExpertsHaveTheRoomThatIsLeft) {
  for (const int rank : {0, 1}) {
    const int64_t bytes = taken(rank, {.mixtures = 0}) - 1;
    const Fitted found = fitted(rank, asked(bytes, 1000));
    EXPECT_EQ(found.mixtures, found.all_mixtures);
    EXPECT_GT(found.slots, 0);
    EXPECT_LE(taken(rank, found.offload()), bytes);
  }
}

/// What every rank hears; errors by rank, "" where there is none.
struct Heard {
  std::vector<RankFits> fits = std::vector<RankFits>(2);
  std::vector<std::string> errors = std::vector<std::string>(2);
};

TEST_F(RankFitTest, EveryRankFitsItsOwnForWhatRankZeroAsks) {
  const Fit fit = asked(std::min(taken(0, {.mixtures = 1}), taken(1, {.mixtures = 1})), 0);
  Heard heard;
  test::run_ranks(2, [&](int rank, backend::Channel& channel) {
    const Fit mine = rank == 0 ? fit : Fit{.share = {.bytes = 1}};
    heard.fits[static_cast<size_t>(rank)] =
        fit_ranks(channel, mine, [&](const Fit& one) { return fitted(rank, one); });
  });
  for (const RankFits& one : heard.fits) {
    EXPECT_EQ(one.asked.share.bytes, fit.share.bytes);
    EXPECT_EQ(one.asked.context, kContext);
    EXPECT_TRUE(one.shared());
    ASSERT_EQ(one.by_rank.size(), 2u);
    for (const int rank : {0, 1}) {
      const Fitted alone = fitted(rank, fit);
      EXPECT_GT(alone.mixtures, 0u);
      EXPECT_EQ(one.by_rank[static_cast<size_t>(rank)].text(), alone.text());
      EXPECT_EQ(one.by_rank[static_cast<size_t>(rank)].rows, alone.rows);
    }
  }
}

TEST_F(RankFitTest, NothingIsSharedWhereAllFits) {
  test::run_ranks(2, [&](int rank, backend::Channel& channel) {
    const auto own = [&](const Fit&) { return fitted(rank, asked(kPlenty)); };
    EXPECT_FALSE(fit_ranks(channel, {.context = kContext}, own).shared());
  });
  test::run_ranks(2, [&](int rank, backend::Channel& channel) {
    const auto own = [&](const Fit& one) { return fitted(rank, one); };
    EXPECT_TRUE(fit_ranks(channel, asked(kPlenty), own).shared()) << "memory is to be held to a size";
  });
}

// Whichever it is, rank 0 says which and how much, and the other one hears of it.
TEST_F(RankFitTest, ARankThatDoesNotFitIsNamed) {
  for (const int little : {0, 1}) {
    const size_t all = program::routed_experts(sides[static_cast<size_t>(little)]).size();
    const int64_t least = taken(little, {.mixtures = all}, 256);
    Heard heard;
    test::run_ranks(2, [&](int rank, backend::Channel& channel) {
      heard.errors[static_cast<size_t>(rank)] = error_of([&] {
        fit_ranks(channel, asked(kPlenty),
                  [&](const Fit&) { return fitted(rank, asked(rank == little ? least - 1 : kPlenty)); });
      });
    });
    EXPECT_THAT(heard.errors[0], HasSubstr("rank " + std::to_string(little)));
    EXPECT_THAT(heard.errors[0], HasSubstr("needs "));
    EXPECT_THAT(heard.errors[0], HasSubstr(" are available"));
    EXPECT_FALSE(heard.errors[1].empty());
  }
}

}  // namespace
}  // namespace sluice::cli
