// The probe of read bandwidth. What the rates are is the machine's affair.
#include "backend/cpu/peaks.h"

#include <gtest/gtest.h>

#include "base/cpu_info.h"

namespace sluice::backend::cpu {
namespace {

TEST(BandwidthProbe, TellsARateOnceItHasRead) {
  const auto probe = make_bandwidth_probe(usable_threads());
  EXPECT_EQ(probe->bytes_per_second(), 0);
  EXPECT_GE(probe->memory_bytes(), 2 << 20);
  probe->read(1 << 20);
  EXPECT_GT(probe->bytes_per_second(), 1e7);
  // The loops' turn goes round, through stretches as large as the memory and beyond it.
  for (int i = 0; i < 12; ++i) probe->read(i % 2 == 0 ? 8 << 20 : 2 * probe->memory_bytes());
  EXPECT_GT(probe->bytes_per_second(), 1e7);
  EXPECT_LT(probe->bytes_per_second(), 1e13);
}

}  // namespace
}  // namespace sluice::backend::cpu
