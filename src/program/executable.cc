#include "program/executable.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::program {

void Executable::run_part(const Step&, size_t) { CHECK(false, "this backend runs whole steps"); }

// By way of the host, for backends whose memory is that.
void Executable::take_rows(Executable& from, TensorId id, std::span<const RowCopy> rows) {
  if (rows.empty()) return;
  const auto columns = static_cast<size_t>(program()[program().hidden_in()].columns());
  const auto last = [&](int64_t RowCopy::*row) { return 1 + std::ranges::max(rows, {}, row).*row; };
  const int64_t given = last(&RowCopy::from), kept = last(&RowCopy::to);
  std::vector<float> out(static_cast<size_t>(given) * columns), in(static_cast<size_t>(kept) * columns);
  from.peek(id, given, out);
  peek(program().hidden_in(), kept, in);
  for (const RowCopy& row : rows)
    std::copy_n(out.begin() + row.from * static_cast<std::ptrdiff_t>(columns), columns,
                in.begin() + row.to * static_cast<std::ptrdiff_t>(columns));
  poke(program().hidden_in(), kept, in);
}

void run_logits(Executable& executable, const StepInput& input, std::span<float> logits) {
  auto to = logits.begin();
  for (const RowResult& row : run_step(executable, {.input = input}).outputs)
    to = std::ranges::copy(row.logits, to).out;
}

}  // namespace sluice::program
