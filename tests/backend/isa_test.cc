// The choice of an instruction tier: names, the environment's wish, and wishes that cannot be met.
#include "backend/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace sluice::backend::cpu {
namespace {

class IsaTest : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("SLUICE_ISA"); }
  static void wish(const char* name) { ::setenv("SLUICE_ISA", name, 1); }
};

TEST_F(IsaTest, WithoutAWishTheBestIsChosen) {
  ::unsetenv("SLUICE_ISA");
  EXPECT_EQ(chosen_isa(), best_isa());
  wish("");
  EXPECT_EQ(chosen_isa(), best_isa());
}

TEST_F(IsaTest, EveryTierUpToTheBestCanBeWishedForAndNoneAbove) {
  const std::vector<Isa> usable = usable_isas();
  EXPECT_EQ(usable.front(), Isa::Generic);
  EXPECT_EQ(usable.back(), best_isa());
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon}) {
    wish(std::string(isa_name(isa)).c_str());
    if (std::find(usable.begin(), usable.end(), isa) != usable.end()) {
      EXPECT_EQ(chosen_isa(), isa);
    } else {
      EXPECT_THROW(chosen_isa(), UsageError) << isa_name(isa);
    }
  }
}

TEST_F(IsaTest, AnUnknownNameIsAnError) {
  wish("sse9");
  EXPECT_THROW(chosen_isa(), UsageError);
}

}  // namespace
}  // namespace sluice::backend::cpu
