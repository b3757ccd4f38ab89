#include "backend/cpu/panel_plan.h"

#include <algorithm>

#include "backend/cpu/tiled.h"

namespace sluice::backend::cpu {

int64_t panel_cost(int64_t rows, bool tiled) {
  if (rows == 0) return 0;
  return tiled ? whole_groups(rows) + 4 * kGroupRows : 4 * (rows + 4);
}

int row_parts(int workers, int64_t rows, int64_t panels, bool tiled, bool rounded) {
  constexpr int64_t kLeastRows = 64;
  if (rows < kLeastRows) return 1;
  const int64_t prepare = rounded ? 2 : 20;  // of a row, in panel_cost's measure
  const auto share = [](int64_t count, int64_t among, int64_t group) {
    return (count + among * group - 1) / (among * group) * group;
  };
  const auto cost = [&](int parts) {
    const int64_t most_rows = share(rows, parts, kGroupRows),
                  most_panels = share(panels, workers / parts, tiled ? 2 : 1);
    return prepare * most_rows + most_panels * panel_cost(most_rows, tiled);
  };
  int best = 1;
  for (int parts = 2; parts <= std::min<int64_t>(workers, whole_groups(rows) / kGroupRows); ++parts)
    if (workers % parts == 0 && 16 * cost(parts) <= 15 * cost(best)) best = parts;
  return best;
}

ProductWork product_work(Stealing stealing, int64_t rows, int64_t panels, int matrices, bool tiled,
                         bool rounded) {
  stealing.parts = row_parts(stealing.workers, rows, matrices * panels, tiled, rounded);
  return {slice_of(rows, stealing.worker % stealing.parts, stealing.parts, kGroupRows), {panels, stealing}};
}

PanelShares::PanelShares(int worker, int workers, int64_t total)
    : begin_(total * worker / workers), end_(total * (worker + 1) / workers) {}

// A panel belongs to the stretch in which it begins.
Slice PanelShares::take(const MatrixWork& matrix) {
  const int64_t cost = matrix.cost();
  if (cost == 0) return {0, 0};
  const auto first_from = [&](int64_t at) {
    return at <= 0 ? 0 : std::min((at + cost - 1) / cost, matrix.panels);
  };
  const Slice panels{first_from(begin_), first_from(end_)};
  begin_ -= matrix.panels * cost, end_ -= matrix.panels * cost;
  return panels;
}

void share_out(const Stealing& stealing, int64_t matrices, int64_t least,
               const std::function<MatrixWork(int64_t)>& of,
               const std::function<void(int64_t, Slice)>& body) {
  int64_t total = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    const MatrixWork work = of(m);
    total += work.panels * work.cost();
  }
  const auto walk = [&](int owner, auto visit) {
    PanelShares shares(owner, stealing.workers, total);
    for (int64_t m = 0; m < matrices; ++m) {
      const Slice panels = shares.take(of(m));
      if (panels.first < panels.last) visit(m, panels);
    }
  };
  const auto count = [&](int owner) {
    int64_t panels = 0;
    walk(owner, [&](int64_t, Slice some) { panels += some.last - some.first; });
    return panels;
  };
  stealing.each(least, count, [&](int owner, Slice piece) {
    int64_t before = 0;  // panels of the share
    walk(owner, [&](int64_t m, Slice panels) {
      const int64_t offset = panels.first - before;
      const Slice some{std::max(panels.first, piece.first + offset),
                       std::min(panels.last, piece.last + offset)};
      if (some.first < some.last) body(m, some);
      before += panels.last - panels.first;
    });
  });
}

}  // namespace sluice::backend::cpu
