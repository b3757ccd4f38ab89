// Routing on numbers that only a damaged file gives: whatever they are, each row gets distinct experts, out
// of groups that may be used, and both backends select the same.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of logits that are nothing but special, and some where they are mixed with numbers.
std::vector<float> odd_logits(int64_t rows, int64_t experts) {
  const float odd[] = {kNan, -kNan, kInf, -kInf, 3e38f, -3e38f, 0.0f};
  std::vector<float> logits;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t e = 0; e < experts; ++e) {
      logits.push_back(r < 7 ? odd[r] : (e * 7 + r) % 3 == 0 ? odd[(e + r) % 7] : static_cast<float>(e % 5));
    }
  }
  return logits;
}

TEST(Route, OddNumbersStillSelectDistinctExperts) {
  for (const OpCase& op_case : Route::cases()) {
    OpCase large = op_case;
    large.rows = 30;
    CaseRun run(large, 3);
    const auto& route = std::get<Route>(run.program().ops().back().args);
    const int64_t experts = run.program()[route.logits.id].columns(),
                  used = run.program()[route.ids.id].columns();
    const std::vector<float> logits = odd_logits(large.rows, experts);
    std::vector<std::vector<float>> selected;
    for (const auto& backend : {std::shared_ptr<Backend>(backend::make_ref_backend()),
                                std::shared_ptr<Backend>(backend::make_cpu_backend({.threads = 2}))}) {
      const auto executable = run.compile(*backend);
      executable->poke(route.logits.id, large.rows, logits);
      run.run(*executable);
      std::vector<float> ids(static_cast<size_t>(large.rows * used));
      executable->peek(route.ids.id, large.rows, ids);
      for (int64_t r = 0; r < large.rows; ++r) {
        std::set<float> distinct, groups;
        for (int64_t k = 0; k < used; ++k) {
          const float id = ids[static_cast<size_t>(r * used + k)];
          ASSERT_TRUE(id >= 0 && id < static_cast<float>(experts)) << backend->name() << " row " << r;
          distinct.insert(id);
          groups.insert(std::floor(id / static_cast<float>(experts / route.groups)));
        }
        EXPECT_EQ(distinct.size(), static_cast<size_t>(used))
            << backend->name() << " row " << r << " " << large.name;
        EXPECT_LE(groups.size(), static_cast<size_t>(route.groups_used)) << backend->name() << " row " << r;
      }
      selected.push_back(std::move(ids));
    }
    EXPECT_EQ(selected[0], selected[1]) << large.name;
  }
}

}  // namespace
}  // namespace sluice::test
