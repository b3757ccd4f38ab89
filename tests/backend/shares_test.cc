// How the real ops' panels are shared at batch 1 among 2, 64 and 192 workers: by the code that the kernels
// run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "backend/cpu/multiply.h"

namespace sluice::backend::cpu {
namespace {

/// An op's matrices: `first` of some rows and `others` of other rows (shared and selected experts), or one.
struct OpShape {
  const char* name;
  int64_t rows;
  int64_t others = 0, other_rows = 0;
};
constexpr OpShape kOps[] = {{"GLM q_a", 768},
                            {"GLM kv_a", 576},
                            {"GLM q_b", 20 * 256},
                            {"GLM k_b", 20 * 512},
                            {"GLM v_b", 20 * 256},
                            {"GLM o", 2048},
                            {"GLM dense gate", 10240},
                            {"GLM router", 64},
                            {"GLM experts gate", 1536, 4, 1536},
                            {"GLM experts down", 2048, 4, 2048},
                            {"GLM output", 154880},
                            {"V2-Lite q", 16 * 192},
                            {"V2-Lite kv_a", 576},
                            {"V2-Lite k_b", 16 * 512},
                            {"V2-Lite v_b", 16 * 128},
                            {"V2-Lite o", 2048},
                            {"V2-Lite dense gate", 10944},
                            {"V2-Lite router", 64},
                            {"V2-Lite experts gate", 2816, 6, 1408},
                            {"V2-Lite experts down", 2048, 6, 2048},
                            {"V2-Lite output", 102400},
                            {"Youtu q_a", 1536},
                            {"Youtu q_b", 16 * 192},
                            {"Youtu o", 2048},
                            {"Youtu gate", 6144},
                            {"Youtu output", 128256}};

int64_t panels_of(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

/// Panels that a worker takes of the op.
int64_t load(const OpShape& op, int worker, int workers) {
  if (op.others == 0) {
    const Slice slice = slice_of(panels_of(op.rows), worker, workers);
    return slice.last - slice.first;
  }
  const MatrixWork one{panels_of(op.rows), 1, false}, other{panels_of(op.other_rows), 1, false};
  PanelShares shares(worker, workers, one.panels * one.cost() + op.others * other.panels * other.cost());
  const Slice first = shares.take(one);
  int64_t panels = first.last - first.first;
  for (int64_t i = 0; i < op.others; ++i) {
    const Slice slice = shares.take(other);
    panels += slice.last - slice.first;
  }
  return panels;
}

TEST(Slices, AreBalancedWhereThereArePanelsEnough) {
  for (const int workers : {2, 64, 192}) {
    std::string coarse;
    for (const OpShape& op : kOps) {
      int64_t largest = 0, sum = 0;
      for (int w = 0; w < workers; ++w) {
        largest = std::max(largest, load(op, w, workers));
        sum += load(op, w, workers);
      }
      const int64_t panels = panels_of(op.rows) + op.others * panels_of(op.other_rows);
      EXPECT_EQ(sum, panels) << op.name << " on " << workers;
      // No division into whole panels can do better.
      EXPECT_LE(largest, (panels + workers - 1) / workers) << op.name << " on " << workers;
      const double even = static_cast<double>(panels) / workers;
      if (panels >= 20 * workers) {
        EXPECT_LE(static_cast<double>(largest), 1.05 * even) << op.name << " on " << workers;
      } else if (static_cast<double>(largest) > 1.05 * even) {
        coarse += std::string(coarse.empty() ? "" : ", ") + op.name + " (" + std::to_string(panels) + ")";
      }
    }
    RecordProperty("uneven_on_" + std::to_string(workers), coarse);
    if (workers == 2) {
      EXPECT_EQ(coarse, "") << "two workers share every op of these models evenly";
    } else {
      printf("%d workers, more than 5%% uneven (panels): %s\n", workers, coarse.c_str());
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
