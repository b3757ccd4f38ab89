// Where the rows of the latent cache lie.
#include "backend/cpu/memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace sluice::backend::cpu {
namespace {

using program::kPageRows;

TEST(CacheTest, EveryRowHasItsOwnPlaceAndALayersPagesLieSideBySide) {
  constexpr int64_t kRowBytes = 3;
  for (const int64_t pages : {1, 7, 8, 9, 16, 27}) {
    for (const int64_t layers : {1, 2, 5}) {
      const int64_t bytes = pages * layers * kPageRows * kRowBytes;
      std::vector<std::byte> data(static_cast<size_t>(bytes));
      const Cache cache{data.data(), layers, pages, kRowBytes, {}};
      std::set<int64_t> places;
      for (int64_t layer = 0; layer < layers; ++layer) {
        for (int64_t slot = 0; slot < pages * kPageRows; ++slot) {
          const int64_t place = cache.row(layer, slot) - data.data();
          ASSERT_TRUE(place >= 0 && place <= bytes - kRowBytes && place % kRowBytes == 0) << place;
          places.insert(place);
          if (slot % (Cache::kRun * kPageRows) == 0) continue;
          EXPECT_EQ(cache.row(layer, slot) - cache.row(layer, slot - 1), kRowBytes) << pages << " " << slot;
        }
      }
      EXPECT_EQ(std::ssize(places), pages * layers * kPageRows) << pages << " pages, " << layers << " layers";
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
