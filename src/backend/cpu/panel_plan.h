// Who multiplies what: how the panels of matrices and the rows of a step are shared among workers. Knows
// numbers of panels and rows; no weights, no kernels.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/cpu/stealing.h"

namespace sluice::backend::cpu {

/// What a panel costs, in quarters of a row's byte product: reading it takes as long as computing four rows
/// of it. On tiles a group of rows takes as long as four, unpacking as 16.
int64_t panel_cost(int64_t rows, bool tiled);

/// Into how many parts a step's rows go in a product with so many panels, of all matrices. The workers of a
/// part prepare its rows alone, but all its panels are read and unpacked for them: both costs are weighed,
/// and what is left over where workers do not divide them evenly. rounded: rows that others have prepared.
///
/// More parts must gain a sixteenth each time, and few rows are not parted: memory is what they wait for.
int row_parts(int workers, int64_t rows, int64_t panels, bool tiled, bool rounded);

/// A worker's rows of a step, and its panels.
struct ProductWork {
  Slice rows;
  PanelWork panels;
};
/// Of a product of `matrices` of so many panels each.
ProductWork product_work(Stealing stealing, int64_t rows, int64_t panels, int matrices, bool tiled,
                         bool rounded);

/// One of many matrices, and what it sees.
struct MatrixWork {
  int64_t panels, rows;
  bool tiled;
  int64_t weight = 1;  // of a panel, beside those of others: its bytes where they differ

  int64_t cost() const { return panel_cost(rows, tiled) * weight; }  ///< of a panel
};

/// Shares panels of many matrices that see different numbers of rows: a panel costs its reading and its rows,
/// and each worker takes an equal stretch of the whole cost.
class PanelShares {
 public:
  /// total: the sum of panels * cost() over all matrices.
  PanelShares(int worker, int workers, int64_t total);
  /// The worker's panels of the next matrix.
  Slice take(const MatrixWork& matrix);

 private:
  int64_t begin_, end_;  // of the worker's stretch, from where the next matrix begins
};

/// Calls body(matrix, panels of it): a worker's share of `matrices` as PanelShares finds it, then what others
/// have left of theirs. of(matrix) says what that one is; `least` panels are taken at once.
void share_out(const Stealing& stealing, int64_t matrices, int64_t least,
               const std::function<MatrixWork(int64_t)>& of, const std::function<void(int64_t, Slice)>& body);
/// The same. Functions go by reference: a step allocates nothing.
template <typename Of, typename Body>
void each_share(const Stealing& stealing, int64_t matrices, int64_t least, Of of, Body body) {
  share_out(stealing, matrices, least, std::ref(of), std::ref(body));
}

}  // namespace sluice::backend::cpu
