// How workers share the panels of experts that see different numbers of rows: everything once, and evenly.
#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/multiply.h"

namespace sluice::backend::cpu {
namespace {

struct Work {
  int64_t panels, rows;
  bool tiled = false;
  int64_t weight = 1;
};

/// Cost of what each worker takes, in quarters of a row: rows of a panel and its reading (4 rows), or on
/// tiles groups of 16 rows (4 each) and unpacking (16); every panel must be taken once.
std::vector<int64_t> costs_of(const std::vector<Work>& work, int workers) {
  std::vector<std::vector<int>> takers;
  takers.reserve(work.size());
  for (const Work& w : work) takers.emplace_back(static_cast<size_t>(w.panels), 0);
  std::vector<int64_t> costs(static_cast<size_t>(workers), 0);
  for (int worker = 0; worker < workers; ++worker) {
    PanelShares shares(worker, workers);
    for (const Work& w : work) shares.count(w.panels, w.rows, w.tiled, w.weight);
    for (size_t i = 0; i < work.size(); ++i) {
      const auto& [panels, rows, tiled, weight] = work[i];
      const Slice mine = shares.take(panels, rows, tiled, weight);
      for (int64_t p = mine.first; p < mine.last; ++p) {
        ++takers[i][static_cast<size_t>(p)];
        if (rows == 0) continue;
        const int64_t of_rows = tiled ? 16 * ((rows + 15) / 16) + 64 : 4 * rows + 16;
        costs[static_cast<size_t>(worker)] += of_rows * weight;
      }
    }
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].rows == 0) continue;
    for (const int taken : takers[i]) EXPECT_EQ(taken, 1) << "matrix " << i;
  }
  return costs;
}

TEST(PanelShares, AreEvenForManyWorkersWhateverTheRouting) {
  std::mt19937 random(4);
  std::vector<Work> work = {{96, 512, true}};  // shared experts on tiles, then 64 that rows chose at random
  for (int e = 0; e < 64; ++e) work.push_back({96, static_cast<int64_t>(random() % 64)});
  for (const int workers : {1, 2, 3, 64, 192}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    // A panel is not divided: the ends of a share may be off by the cost of one.
    EXPECT_LE(*most - *least, *most / 20 + 2 * 576) << workers << " workers";
  }
}

TEST(PanelShares, PanelsThatWeighMoreCountForMore) {
  const std::vector<Work> work = {
      {128, 1, false, 29}, {128, 1, false, 10}, {128, 0, false, 10}, {128, 1, false, 10}};
  for (const int workers : {2, 7, 16}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    // A panel is not divided: the ends of a share may be off by the cost of the heaviest.
    EXPECT_LE(*most - *least, 2 * 20 * 29) << workers << " workers";
  }
}

TEST(PanelShares, OneRowOfFewExpertsIsEvenToAPanel) {
  const std::vector<Work> work = {{96, 1}, {96, 1}, {96, 0}, {96, 1}, {96, 1}, {96, 1}};
  for (const int workers : {2, 7, 64}) {
    const std::vector<int64_t> costs = costs_of(work, workers);
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    EXPECT_LE(*most - *least, 20) << workers << " workers";  // one panel of one row
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
