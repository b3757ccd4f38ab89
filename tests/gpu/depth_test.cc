// mla_heads and norm_mla_heads of rows at depth on the CUDA backend against the reference: contexts that
// other tests are too short for, of every regime of their kernels.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

/// Rows of the cache that differ; a context goes through their pages again and again.
constexpr int32_t kFilled = 128;

struct Param {
  const char *op, *op_case;
  int32_t depth, rows = 1;
};

/// Depths of so many rows, each some pages and a position less deep than the one before.
std::vector<int32_t> depths_from(int32_t deepest, int32_t rows) {
  std::vector<int32_t> depths;
  depths.reserve(static_cast<size_t>(rows));
  for (int32_t row = 0; row < rows; ++row)
    depths.push_back(deepest - row * (static_cast<int32_t>(kPageRows) + 1));
  return depths;
}

class CudaDepth : public testing::TestWithParam<Param> {};

/// Values of rows of a sequence each at these depths, or together of one, of neighbouring depths: fills the
/// cache in one step, each row as a sequence's first, then takes the rows in another. most_pages: of a
/// sequence, for the executable; 0: those it has.
std::vector<float> values_at(CaseRun& run, program::Backend& backend, const std::vector<int32_t>& depths,
                             int32_t most_pages = 0, bool together = false) {
  constexpr auto kPage = static_cast<int32_t>(kPageRows);
  const auto count = static_cast<int32_t>(depths.size());
  const int32_t pages = kFilled / kPage, used = *std::max_element(depths.begin(), depths.end()) / kPage + 1;
  const auto executable = backend.compile(run.program(), run.weights(),
                                          {kFilled, kFilled, std::max({used, pages, most_pages}) + count});
  run.poke_inputs(*executable);
  std::vector<int32_t> tokens(kFilled, 1), positions(kFilled, 0), sequences(kFilled, 0), slots(kFilled),
      rows(kFilled);
  std::iota(slots.begin(), slots.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  const auto depth_of = [&](int32_t row) { return depths[static_cast<size_t>(row)]; };
  const auto sequence_of = [&](int32_t row) { return together ? 0 : row; };
  // The row's own page.
  const auto page_of = [&](int32_t row) {
    return pages + (together ? depth_of(row) / kPage - depth_of(0) / kPage : row);
  };
  std::vector<int32_t> tables;
  for (int32_t row = 0; row < count; ++row) {
    if (sequence_of(row) == row)
      for (int32_t i = 0; i < used; ++i) tables.push_back(i % pages);
    const int32_t own = sequence_of(row) * used + depth_of(row) / kPage;
    tables[static_cast<size_t>(own)] = page_of(row);
  }
  run_step(*executable, {.input = {tokens, positions, sequences, slots, tables, used, rows}});
  // The page of a row holds earlier ones too.
  for (int32_t row = 0; row < count; ++row) {
    const int32_t own = depth_of(row) % kPage;
    if (own == 0 || sequence_of(row) != row) continue;
    std::vector<int32_t> more(static_cast<size_t>(own));
    std::iota(more.begin(), more.end(), page_of(row) * kPage);
    const auto first = [&](const std::vector<int32_t>& list) {
      return std::span<const int32_t>(list).first(static_cast<size_t>(own));
    };
    run_step(*executable,
             {.input = {first(tokens), first(positions), first(sequences), more, tables, used, first(rows)}});
  }
  std::vector<int32_t> deep, own_slots;
  for (int32_t row = 0; row < count; ++row) {
    deep.push_back(depth_of(row));
    own_slots.push_back(page_of(row) * kPage + depth_of(row) % kPage);
    sequences[static_cast<size_t>(row)] = sequence_of(row);
  }
  const auto first = [&](const std::vector<int32_t>& list) {
    return std::span<const int32_t>(list).first(depths.size());
  };
  run.poke_inputs(*executable);  // what a step made may lie where they were
  run_step(*executable,
           {.input = {first(tokens), deep, first(sequences), own_slots, tables, used, first(rows)}});
  // All heads: an executable hands back the first one's.
  std::vector<float> values(run.elements(run.program().output()) / kFilled * depths.size());
  executable->peek(run.program().output(), count, values);
  return values;
}

/// The case of this name, with as many rows as fill the cache.
OpCase case_of(std::string_view op, std::string_view name) {
  for (const OpInfo& info : all_ops()) {
    if (info.name != op) continue;
    for (OpCase op_case : info.cases()) {
      if (op_case.name != name) continue;
      op_case.rows = kFilled;
      return op_case;
    }
  }
  throw std::invalid_argument(fmt::format("no case {} of {}", name, op));
}

void expect_agreement(const OpCase& of, const std::vector<int32_t>& depths, bool together = false) {
  CUDA_OR_SKIP(cuda);
  CaseRun run(of, 7);
  const std::vector<float> expected = values_at(run, *backend::make_ref_backend(), depths, 0, together);
  const std::vector<float> seen = values_at(run, cuda, depths, 0, together),
                           again = values_at(run, cuda, depths, 0, together);
  double error = 0, norm = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_TRUE(std::isfinite(seen[i])) << i;
    error += std::pow(double{seen[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  ASSERT_GT(norm, 0) << "a result of zeros proves nothing";
  fmt::print("relative error {:.2e}\n", std::sqrt(error / norm));
  // Eight bits of queries and of values make 8e-3; 64 positions left out of 4,096 would make 2e-2.
  EXPECT_LE(std::sqrt(error / norm), cuda.tolerance(run.program()));
  EXPECT_EQ(seen, again);
}

TEST_P(CudaDepth, AgreesWithReference) {
  expect_agreement(case_of(GetParam().op, GetParam().op_case),
                   depths_from(GetParam().depth, GetParam().rows));
}

// Where a page begins and ends, and where its quarters do.
TEST(CudaPage, OfFewRowsAgreesWithReference) {
  for (const std::vector<int32_t>& depths :
       {std::vector<int32_t>{0, 1}, {63, 15, 16}, {47, 48, 31, 32, 33}, {63, 0, 62, 17, 40, 5, 16, 63}})
    expect_agreement(case_of("mla_heads", "20 heads with q rows 1"), depths);
}

/// Of norm_mla_heads' cases of these names, two neighbouring rows of a sequence from each depth on.
void expect_two_rows_to_agree(std::initializer_list<const char*> names,
                              std::initializer_list<int32_t> depths) {
  for (const int32_t depth : depths)
    for (const char* name : names) {
      SCOPED_TRACE(fmt::format("{} at {}", name, depth));
      expect_agreement(case_of("norm_mla_heads", name), {depth, depth + 1}, true);
    }
}

// The second row sees the first one's, which enters the cache while it attends: the ends of a block's 32
// positions and of a page.
TEST(CudaPage, OfTwoRowsOfASequenceAgreesWithReference) {
  expect_two_rows_to_agree({"20 heads Q4_0 rows 1", "16 heads Q6_K, cache of Q8_0, rows 1"},
                           {0, 30, 31, 32, 62, 63, 64, 190, 191, 300, 510});
}

// The same behind 512 positions: the ends of parts of contexts (20 or so) and of their pieces of 144.
TEST(CudaPage, OfTwoRowsOfADeepSequenceAgreesWithReference) {
  expect_two_rows_to_agree({"20 heads Q4_0 rows 1", "20 heads of 1280 columns Q4_K rows 1"},
                           {511, 575, 639, 703, 1151, 2099, 2880, 4095, 5718, 8189});
}

// Drafts, and short prompts at depth, which read their context together: chunks that end within them, so that
// the first ones see nothing of the last one; a tile of 64 queries that ends within a row; both caches.
TEST(CudaPage, OfSomeRowsOfADeepSequenceAgreesWithReference) {
  const auto neighbours = [](int32_t first, int32_t rows) {
    std::vector<int32_t> depths(static_cast<size_t>(rows));
    std::iota(depths.begin(), depths.end(), first);
    return depths;
  };
  const auto agree = [&](const char* name, int32_t first, int32_t rows) {
    SCOPED_TRACE(fmt::format("{}: {} rows at {}", name, rows, first));
    expect_agreement(case_of("mla_heads", name), neighbours(first, rows), true);
  };
  const char *halves = "20 heads with q rows 1", *codes = "20 heads with q, cache of Q8_0, rows 1";
  for (const int32_t first : {3400, 3452, 3519, 3900, 5117}) agree(halves, first, 8);
  agree(codes, 3515, 8), agree(halves, 3455, 5), agree(halves, 10300, 3);
  agree(halves, 1600, 16), agree(codes, 1211, 40), agree(halves, 1050, 64), agree(halves, 700, 100);
  agree("27 heads rows 1", 4030, 7), agree("38 heads rows 1", 10239, 4);
}

struct Neighbours {
  int32_t rows, span;  ///< depths of rows from 17 on, so far
};

class CudaNeighbours : public testing::TestWithParam<Neighbours> {};

// Which kernels attend, and which puts the chunks of contexts together, goes by the longest context of a
// step: a row must not see it.
TEST_P(CudaNeighbours, OfOtherDepthsChangeNoBit) {
  CUDA_OR_SKIP(cuda);
  CaseRun run(case_of("mla_heads", "20 heads with q rows 1"), 7);
  const auto [rows, span] = GetParam();
  std::vector<int32_t> depths;
  depths.reserve(static_cast<size_t>(rows));
  for (int32_t row = 0; row < rows; ++row) depths.push_back(17 + row * span / rows);
  constexpr int32_t kDeepest = 9001, kPages = kDeepest / static_cast<int32_t>(kPageRows) + 1;
  const std::vector<float> expected = values_at(run, cuda, depths, kPages);
  const size_t row = expected.size() / depths.size();
  for (const int32_t other : {63, 64, 100, 511, 512, 1500, 5000, kDeepest}) {
    depths[0] = other;
    const std::vector<float> seen = values_at(run, cuda, depths, kPages);
    EXPECT_TRUE(std::equal(seen.begin() + static_cast<std::ptrdiff_t>(row), seen.end(),
                           expected.begin() + static_cast<std::ptrdiff_t>(row)))
        << "beside a context of " << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaNeighbours,
                         testing::Values(Neighbours{2, 470}, Neighbours{3, 470}, Neighbours{8, 470},
                                         Neighbours{20, 470}, Neighbours{40, 470}, Neighbours{2, 46},
                                         Neighbours{3, 46}, Neighbours{8, 46}),
                         [](const testing::TestParamInfo<Neighbours>& param) {
                           return fmt::format("{}_of_{}", param.param.rows, param.param.span);
                         });

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = fmt::format("{} {} depth {}", param.param.op, param.param.op_case, param.param.depth);
  if (param.param.rows > 1) name += fmt::format(" for {}", param.param.rows);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

constexpr const char *kHeads = "mla_heads", *kWhole = "norm_mla_heads";
constexpr const char *kHalves = "20 heads with q rows 1", *kNoQ = "20 heads rows 1",
                     *kCoded = "20 heads with q, cache of Q8_0, rows 1";
constexpr const char *k27 = "27 heads rows 1", *k38 = "38 heads rows 1";
constexpr const char *kFour = "20 heads Q4_0 rows 1", *kDirect = "16 heads Q4_0, no low-rank query, rows 1",
                     *kSix = "16 heads Q6_K, cache of Q8_0, rows 1",
                     *kFew = "4 heads of 1024 columns Q8_0 rows 1",
                     *kWide = "16 heads Q4_0, low-rank query of 1536, rows 1",
                     *kFourK = "20 heads of 1280 columns Q4_K rows 1",
                     *kHeadsK = "20 heads of Q4_K with q, rows 4";
INSTANTIATE_TEST_SUITE_P(
    Depths, CudaDepth,
    testing::Values(
        Param{kHeads, kHalves, 40}, Param{kHeads, kHalves, 511}, Param{kHeads, kHalves, 512},
        Param{kHeads, kHalves, 1023}, Param{kHeads, kNoQ, 2100}, Param{kHeads, kHalves, 4095},
        Param{kHeads, kHalves, 4096}, Param{kHeads, kHalves, 9001}, Param{kHeads, kHalves, 33000},
        // Pieces of 48 positions, copies of eight, shares of sixteens: where they end.
        Param{kHeads, kHalves, 8192}, Param{kHeads, kHalves, 8199}, Param{kHeads, kHalves, 8207},
        Param{kHeads, kHalves, 8208}, Param{kHeads, kHalves, 8239}, Param{kHeads, kHalves, 8255},
        Param{kHeads, kHalves, 8256}, Param{kHeads, kHalves, 8262}, Param{kHeads, kHalves, 12000},
        Param{kHeads, kHalves, 32767}, Param{kHeads, kHalves, 40000}, Param{kHeads, k27, 9001},
        Param{kHeads, k27, 33000}, Param{kHeads, k38, 9002}, Param{kHeads, k38, 33000},
        Param{kWhole, kDirect, 9001}, Param{kWhole, kDirect, 33000}, Param{kWhole, kWide, 9001},
        Param{kWhole, kFew, 9001}, Param{kHeads, kCoded, 700}, Param{kHeads, kCoded, 4097},
        Param{kHeads, kCoded, 20011}, Param{kHeads, kHalves, 4095, 2}, Param{kHeads, kHalves, 9001, 5},
        Param{kHeads, kHalves, 2777, 40}, Param{kHeads, kHalves, 4679, 70}, Param{kHeads, kCoded, 4097, 7},
        Param{kHeads, kCoded, 4679, 66}, Param{kWhole, kFour, 31}, Param{kWhole, kFour, 32},
        Param{kWhole, kFour, 300}, Param{kWhole, kFour, 511}, Param{kWhole, kDirect, 191},
        Param{kWhole, kDirect, 511}, Param{kWhole, kSix, 70}, Param{kWhole, kSix, 450},
        Param{kWhole, kFew, 288}, Param{kWhole, kFour, 600}, Param{kWhole, kFour, 2100},
        Param{kWhole, kFour, 4095}, Param{kWhole, kFour, 4096}, Param{kWhole, kFour, 4400},
        Param{kWhole, kFour, 8100}, Param{kWhole, kFour, 9001}, Param{kWhole, kDirect, 700},
        Param{kWhole, kDirect, 4097}, Param{kWhole, kSix, 2100}, Param{kWhole, kFew, 513},
        Param{kWhole, kFew, 5000}, Param{kWhole, kWide, 400}, Param{kWhole, kWide, 700},
        Param{kWhole, kWide, 4097}, Param{kWhole, kFourK, 300}, Param{kWhole, kFourK, 2100},
        Param{kWhole, kFourK, 9001}, Param{kHeads, kHeadsK, 4095, 8}, Param{kHeads, kHeadsK, 500, 7},
        Param{kWhole, kFour, 300, 2}, Param{kWhole, kDirect, 511, 2}, Param{kWhole, kSix, 450, 2},
        Param{kWhole, kFew, 288, 2}, Param{kWhole, kFourK, 95, 2}, Param{kWhole, kFour, 600, 2},
        Param{kWhole, kFour, 2100, 2}, Param{kWhole, kFour, 8100, 2}, Param{kWhole, kFour, 9001, 2},
        Param{kWhole, kFourK, 2100, 2}, Param{kWhole, kFourK, 5718, 2}, Param{kHeads, kHalves, 2100, 8},
        Param{kHeads, kHalves, 5718, 16}, Param{kHeads, kHalves, 4700, 64}),
    name_of);

}  // namespace
}  // namespace sluice::test
