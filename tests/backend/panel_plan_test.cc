// How panels of matrices and rows of a step are shared among workers: every panel meets every row once, and
// nobody has much more to do than others.
#include "backend/cpu/panel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace sluice::backend::cpu {
namespace {

/// Cost of a panel, in quarters of a row: its rows and its reading (4 rows), or on tiles groups of 16 rows (4
/// each) and unpacking (16).
int64_t cost_of(const MatrixWork& work) {
  if (work.rows == 0) return 0;
  return (work.tiled ? 16 * ((work.rows + 15) / 16) + 64 : 4 * work.rows + 16) * work.weight;
}

int64_t total_of(const std::vector<MatrixWork>& work) {
  return std::accumulate(work.begin(), work.end(), int64_t{0},
                         [](int64_t sum, const MatrixWork& w) { return sum + w.panels * cost_of(w); });
}

/// Each worker's share of the costs; that every panel is taken once is expected.
std::vector<int64_t> costs_of(const std::vector<MatrixWork>& work, int workers) {
  std::vector<std::vector<int>> takers;
  takers.reserve(work.size());
  for (const MatrixWork& w : work) takers.emplace_back(static_cast<size_t>(w.panels), 0);
  std::vector<int64_t> costs(static_cast<size_t>(workers), 0);
  for (int worker = 0; worker < workers; ++worker) {
    PanelShares shares(worker, workers, total_of(work));
    for (size_t i = 0; i < work.size(); ++i) {
      const Slice mine = shares.take(work[i]);
      for (int64_t p = mine.first; p < mine.last; ++p) {
        ++takers[i][static_cast<size_t>(p)];
        costs[static_cast<size_t>(worker)] += cost_of(work[i]);
      }
    }
  }
  for (size_t i = 0; i < work.size(); ++i) {
    for (const int taken : takers[i]) EXPECT_EQ(taken, work[i].rows > 0) << "matrix " << i;
  }
  return costs;
}

/// Lists of up to three matrices, of all kinds.
std::vector<std::vector<MatrixWork>> all_lists() {
  std::vector<MatrixWork> kinds;
  for (const int64_t panels : {0, 1, 2, 5, 24}) {
    for (const int64_t rows : {0, 1, 40}) {
      kinds.push_back({panels, rows, false});
      kinds.push_back({panels, rows, true, 3});
    }
  }
  std::vector<std::vector<MatrixWork>> lists;
  for (const MatrixWork& a : kinds) {
    lists.push_back({a});
    for (const MatrixWork& b : kinds) {
      lists.push_back({a, b});
      lists.push_back({b, a, b});
    }
  }
  return lists;
}

TEST(PanelShares, GiveEveryPanelToOneAndNobodyMoreThanAPanelTooMuch) {
  for (const std::vector<MatrixWork>& list : all_lists()) {
    int64_t dearest = 0;
    for (const MatrixWork& work : list) dearest = std::max(dearest, work.panels > 0 ? cost_of(work) : 0);
    for (int workers = 1; workers <= 9; ++workers) {
      for (const int64_t cost : costs_of(list, workers))
        ASSERT_LE(cost, total_of(list) / workers + 1 + dearest) << workers << " workers";
    }
  }
}

TEST(PanelShares, LeaveWhatAWorkerHasNotTakenToOthers) {
  const std::vector<std::vector<MatrixWork>> lists = all_lists();
  for (size_t l = 0; l < lists.size(); l += 7) {
    const std::vector<MatrixWork>& list = lists[l];
    for (int workers = 1; workers <= 5; ++workers) {
      for (const int64_t least : {1, 4}) {
        std::vector<Taken> taken(static_cast<size_t>(workers));
        std::vector<std::vector<int>> times;
        for (const MatrixWork& work : list) times.emplace_back(static_cast<size_t>(work.panels), 0);
        // The last one comes first and finds all of it; the first one never comes.
        for (int worker = workers - 1; worker >= std::min(1, workers - 1); --worker) {
          const Stealing stealing{{taken.data(), 1, workers}, worker, workers};
          each_share(
              stealing, std::ssize(list), least, [&](int64_t m) { return list[static_cast<size_t>(m)]; },
              [&](int64_t m, Slice some) {
                for (int64_t p = some.first; p < some.last; ++p)
                  ++times[static_cast<size_t>(m)][static_cast<size_t>(p)];
              });
        }
        for (size_t m = 0; m < list.size(); ++m) {
          for (const int count : times[m]) ASSERT_EQ(count, list[m].rows > 0) << workers << " workers";
        }
      }
    }
  }
}

TEST(PanelShares, AreEvenForManyWorkersWhateverTheRouting) {
  std::mt19937 random(4);
  std::vector<MatrixWork> work = {{96, 512, true}};  // shared experts on tiles, then 64 that rows chose
  for (int e = 0; e < 64; ++e) work.push_back({96, static_cast<int64_t>(random() % 64), false});
  for (const int workers : {1, 2, 3, 64, 192}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    // A panel is not divided: the ends of a share may be off by the cost of one.
    EXPECT_LE(*most - *least, *most / 20 + 2 * 576) << workers << " workers";
  }
}

TEST(PanelShares, PanelsThatWeighMoreCountForMore) {
  const std::vector<MatrixWork> work = {
      {128, 1, false, 29}, {128, 1, false, 10}, {128, 0, false, 10}, {128, 1, false, 10}};
  for (const int workers : {2, 7, 16}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    // A panel is not divided: the ends of a share may be off by the cost of the heaviest.
    EXPECT_LE(*most - *least, 2 * 20 * 29) << workers << " workers";
  }
}

TEST(PanelShares, OneRowOfFewExpertsIsEvenToAPanel) {
  const std::vector<MatrixWork> work = {{96, 1, false}, {96, 1, false}, {96, 0, false},
                                        {96, 1, false}, {96, 1, false}, {96, 1, false}};
  for (const int workers : {2, 7, 64}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    EXPECT_LE(*most - *least, 20) << workers << " workers";  // one panel of one row
  }
}

/// How often each row meets each panel, worker after worker; the last comes first: what it finds is left for
/// nobody.
std::vector<int> meetings(int workers, int64_t rows, int64_t panels, bool steals, bool tiled) {
  std::vector<Taken> taken(static_cast<size_t>(workers));
  std::vector<int> times(static_cast<size_t>(rows * panels), 0);
  for (int worker = workers - 1; worker >= 0; --worker) {
    const Stealing stealing{{steals ? taken.data() : nullptr, 1, workers}, worker, workers};
    const ProductWork work = product_work(stealing, rows, panels, 1, tiled, false);
    work.panels.each(1, tiled ? 2 : 1, [&](int64_t, Slice some) {
      for (int64_t r = work.rows.first; r < work.rows.last; ++r) {
        for (int64_t p = some.first; p < some.last; ++p) ++times[static_cast<size_t>(r * panels + p)];
      }
    });
  }
  return times;
}

void expect_one_meeting(int workers, int64_t rows, int64_t panels) {
  for (const bool steals : {false, true}) {
    for (const bool tiled : {false, true}) {
      const std::vector<int> times = meetings(workers, rows, panels, steals, tiled);
      ASSERT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; }))
          << workers << " workers, " << rows << " rows, " << panels << " panels";
    }
  }
}

TEST(ProductWork, EveryRowMeetsEveryPanelOnce) {
  for (int workers = 1; workers <= 12; ++workers) {
    for (const int64_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 80, 97, 128}) {
      for (int64_t panels = 1; panels <= 20; ++panels) expect_one_meeting(workers, rows, panels);
    }
  }
  for (const int workers : {16, 64, 192}) {
    for (const int64_t rows : {1, 63, 100, 512}) {
      for (const int64_t panels : {4, 36, 128, 385}) expect_one_meeting(workers, rows, panels);
    }
  }
}

TEST(ProductWork, PartsDivideTheTeamAndAreEven) {
  for (int workers = 1; workers <= 48; ++workers) {
    for (const int64_t rows : {1, 63, 64, 100, 512, 2048}) {
      for (const int64_t panels : {1, 4, 36, 128, 385}) {
        const int parts = row_parts(workers, rows, panels, false, false);
        ASSERT_TRUE(parts >= 1 && workers % parts == 0) << parts << " parts of " << workers << " workers";
        ASSERT_TRUE(parts == 1 || rows >= 64) << parts << " parts of " << rows << " rows";
        int64_t least_panels = panels, most_panels = 0, least_rows = rows, most_rows = 0;
        for (int worker = 0; worker < workers; ++worker) {
          const ProductWork work = product_work({{}, worker, workers}, rows, panels, 1, false, false);
          const int64_t own = work.panels.own().last - work.panels.own().first;
          const int64_t of_rows = work.rows.last - work.rows.first;
          least_panels = std::min(least_panels, own), most_panels = std::max(most_panels, own);
          least_rows = std::min(least_rows, of_rows), most_rows = std::max(most_rows, of_rows);
        }
        ASSERT_LE(most_panels - least_panels, 1) << workers << " workers, " << panels << " panels";
        ASSERT_LE(most_rows - least_rows, 2 * 16 - 1) << workers << " workers, " << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
