// Products of many rows, whose rows and panels are both shared among workers: everything once, nobody worse
// off than with panels alone, and no bit of a result changes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/multiply.h"
#include "support/isas.h"
#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

using namespace test;

/// What the busiest worker does, in quarters of a row's product, and how many do nothing; `parts` of 512
/// rows.
struct Load {
  int64_t most = 0, idle = 0;
};
Load load_of(int workers, int parts, int64_t panels) {
  Load load;
  for (int worker = 0; worker < workers; ++worker) {
    const Stealing stealing{{}, worker, workers, parts};
    const Slice rows = slice_of(512, worker % parts, parts, kGroupRows),
                own = PanelWork(panels, stealing).own();
    const int64_t of_rows = rows.last - rows.first, of_panels = own.last - own.first;
    load.most = std::max(load.most, 20 * of_rows + of_panels * 4 * (of_rows + 4));
    load.idle += of_rows * of_panels == 0 ? 1 : 0;
  }
  return load;
}

TEST(RowParts, OfManyWorkersLeaveNobodyIdle) {
  // Outputs of GLM-4.7-Flash's, DeepSeek-V2-Lite's and Youtu-LLM-2B's plain products.
  for (const int64_t outputs : {64, 576, 768, 1536, 2048, 3072, 5120, 6144}) {
    const int64_t panels = outputs / kPanelRows;
    for (const int workers : {2, 8, 64, 192}) {
      const int parts = row_parts(workers, 512, panels, false, false);
      const Load of_parts = load_of(workers, parts, panels), of_one = load_of(workers, 1, panels);
      EXPECT_LE(of_parts.most, of_one.most) << outputs << " outputs, " << workers << " workers";
      // Groups of rows times panels are 128 for the narrowest.
      if (panels > 4 || workers <= 64) {
        EXPECT_EQ(of_parts.idle, 0) << outputs << " outputs, " << workers << " workers in " << parts;
      }
    }
  }
  EXPECT_GT(row_parts(64, 512, 2048 / kPanelRows, false, false), 1);
  EXPECT_EQ(row_parts(2, 512, 6144 / kPanelRows, false, false), 1);  // each prepares all rows, and quicker
  EXPECT_EQ(row_parts(64, 63, 2048 / kPanelRows, false, false), 1);  // memory is what few rows wait for
}

constexpr int64_t kColumns = 256;

/// Results of a step through products of all kinds, by op.
std::vector<float> results(int64_t rows, int threads, Isa isa) {
  std::vector<TensorId> ids;
  CaseRun run({"", rows,
               [&ids](Builder& b) {
                 const auto weight = [&](quant::Type type, int64_t outputs) {
                   return b.weight("w", type, 1, outputs, kColumns);
                 };
                 using enum quant::Type;
                 const TensorId x = b.activation("x", kStepRows, 1, kColumns);
                 ids.push_back(b.matmul(x, weight(Q8_0, 40)));
                 ids.push_back(b.matmul(x, weight(F32, 20)));
                 ids.push_back(b.gate_up(x, weight(Q4_0, 72), weight(Q6_K, 72)));
                 ids.push_back(b.matmul_add(x, weight(Q4_K, kColumns), x));
               }},
              7);
  const auto backend = make_cpu_backend({.threads = threads, .isa = isa});
  const auto executable = run.compile(*backend);
  run.run(*executable);
  std::vector<float> all;
  for (const TensorId id : ids) {
    std::vector<float> values(run.elements(id));
    executable->peek(id, rows, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(RowParts, ChangeNoResult) {
  for (const Isa isa : usable_isas()) {
    for (const int64_t rows : {64, 100, 200}) {
      const std::vector<float> expected = results(rows, 1, isa);
      for (const int threads : {2, 4, 6}) {
        ASSERT_GT(row_parts(threads, rows, 3, false, false), 1);
        EXPECT_EQ(results(rows, threads, isa), expected)
            << isa_name(isa) << ", " << rows << " rows, " << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
