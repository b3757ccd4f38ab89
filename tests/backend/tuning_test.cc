// The choices that kernels leave open for `sluice tune`: offered where they matter, and never part of a
// result.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

TEST(Tuning, ChangesNoResult) {
  int offered = 0;
  const auto builtin = backend::make_cpu_backend({.threads = 2});
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      const Program program = program_of(op_case);
      for (const Op& record : program.ops()) {
        for (const Variants& choice : builtin->variants(program, record)) {
          ++offered;
          EXPECT_EQ(std::count(choice.values.begin(), choice.values.end(), choice.builtin), 1) << choice.key;
          if (op_case.rows > 2) continue;  // the same loops, for longer
          CaseRun run(op_case, 3);
          const auto expected_by = run.compile(*builtin);
          for (const int64_t value : choice.values) {
            const auto tuned = backend::make_cpu_backend({.threads = 2, .tuning = {{choice.key, value}}});
            const auto actual_by = run.compile(*tuned);
            for (const TensorId id : run.results()) {
              EXPECT_EQ(run_and_peek(run, *expected_by, id), run_and_peek(run, *actual_by, id))
                  << op_case.name << " with " << choice.key << " = " << value;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(offered, 10);
}

TEST(Tuning, IsBoundAndShown) {
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      if (program_of(op_case).ops().size() != 1) continue;
      CaseRun run(op_case, 3);
      const auto builtin = backend::make_cpu_backend({.threads = 1});
      const std::vector<Variants> choices = builtin->variants(run.program(), run.program().ops()[0]);
      if (choices.empty()) continue;
      const auto bound = [&](const Tuning& tuning) {
        return run.compile(*backend::make_cpu_backend({.threads = 1, .tuning = tuning}))->bound()[0].name;
      };
      const std::vector<int64_t>& values = choices[0].values;
      const auto other = std::find_if(values.begin(), values.end(),
                                      [&](int64_t value) { return value != choices[0].builtin; });
      ASSERT_NE(other, values.end());
      EXPECT_NE(bound({{choices[0].key, *other}}), bound({})) << op_case.name;
      EXPECT_EQ(bound({{choices[0].key, 7}}), bound({})) << "a value that is not offered is not taken";
      return;
    }
  }
  FAIL() << "no op of one record leaves anything open";
}

}  // namespace
}  // namespace sluice::test
