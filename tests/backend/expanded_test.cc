// Attention over expanded keys and values, of tables that begin with floats, against sums in double.
#include "backend/cpu/simd/expanded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "support/isas.h"
#include "support/relative_error.h"

namespace sluice::backend::cpu {

#if defined(__x86_64__)
extern const ExpandedKernels<float> kExpandedAvx2;
#endif

namespace {

using Kernels = ExpandedKernels<float>;

/// Those of every tier that this machine has, and the one for processors without AVX-VNNI.
std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> list;
  for (const Isa isa : test::usable_isas()) {
    if (const Kernels* kernels = expanded_kernels<float>(isa); kernels != nullptr) list.push_back(kernels);
  }
#if defined(__x86_64__)
  if (has_avx_vnni()) list.push_back(&kExpandedAvx2);
#endif
  return list;
}

constexpr int64_t kRows = 37, kPositions = kExpandedKeys + 75;  ///< the second stretch of keys ends in a page
constexpr float kScale = 0.06f;

/// Random latents, weights and queries; positions and queries of very different size take turns where uneven,
/// a position of nothing but zeroes among them. Row i sees its first 9 * i + 1 positions.
struct Attention {
  ExpandedShape shape;
  std::vector<float> latents, k_b, v_b, queries;  // [position][rank + rope], [rank][nope], [rank][value]

  Attention(ExpandedShape s, bool uneven) : shape(s) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& out, int64_t rows, int64_t columns, bool sizes) {
      constexpr float kSizes[] = {1, 0.002f, 30, 0, 0.02f};
      out.resize(static_cast<size_t>(rows * columns));
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = i / static_cast<size_t>(columns);
        out[i] = normal(random) * (sizes ? kSizes[row % std::size(kSizes)] : 1.0f);
      }
    };
    fill(latents, kPositions, s.rank + s.rope, uneven);
    fill(k_b, s.rank, s.nope, false);
    fill(v_b, s.rank, s.value, false);
    fill(queries, kRows, s.key(), uneven);
    for (float& x : k_b) x *= 0.05f;
  }
  static int64_t count(int64_t row) { return 9 * row + 1; }
  double latent(int64_t t, int64_t c) const {
    return static_cast<double>(latents[static_cast<size_t>(t * (shape.rank + shape.rope) + c)]);
  }

  std::vector<float> results(const Kernels& kernels) const {
    const auto room = [](int64_t floats) {
      return std::vector<float>(static_cast<size_t>(floats), std::numeric_limits<float>::quiet_NaN());
    };
    const ExpandedShape& s = shape;
    std::vector<float> k = room(s.rank * s.nope), v = room(s.rank * s.value), panel = room(s.rank * 16);
    for (int64_t p = 0; p < s.rank / 16; ++p) {
      for (int64_t c = 0; c < s.nope; ++c) {
        for (int64_t i = 0; i < 16; ++i)
          panel[static_cast<size_t>(c * 16 + i)] = k_b[static_cast<size_t>((p * 16 + i) * s.nope + c)];
      }
      kernels.k_panel(panel.data(), p, s, k.data());
    }
    for (int64_t p = 0; p < s.value / 16; ++p) {
      for (int64_t r = 0; r < s.rank; ++r) {
        for (int64_t i = 0; i < 16; ++i)
          panel[static_cast<size_t>(r * 16 + i)] = v_b[static_cast<size_t>(r * s.value + p * 16 + i)];
      }
      kernels.v_panel(panel.data(), p, s, v.data());
    }
    std::vector<float> q = room(kExpandedRows * s.key());
    for (int64_t i = 0; i < kRows; ++i) {
      const float* from = queries.data() + i * s.key();
      kernels.query(from, from + s.nope, s, q.data() + i * s.key());
    }
    std::vector<float> keys = room(kExpandedKeys * s.key()), values = room(kExpandedKeys * s.value);
    std::vector<float> work = room(kExpandedRows * (std::max(kExpandedKeys, s.value) + kExpandedKeys / 2));
    std::vector<float> largest(kRows, -std::numeric_limits<float>::infinity()), total(kRows);
    std::vector<float> sums = room(kExpandedRows * s.value);
    const int64_t width = s.rank + s.rope;
    kernels.begin();
    for (int64_t begin = 0; begin < kPositions; begin += kExpandedKeys) {
      const int64_t rows = std::min(kExpandedKeys, kPositions - begin);
      std::vector<float> pages = room(kExpandedKeys * width);
      std::copy_n(latents.begin() + begin * width, rows * width, pages.begin());
      std::vector<const float*> at;
      for (int64_t t = 0; t < rows; t += kExpandedRows) {
        float* page = pages.data() + t * width;
        at.push_back(page);
        if (kernels.prepare != nullptr) kernels.prepare(page, width, std::min(kExpandedRows, rows - t), s);
      }
      kernels.expand(at.data(), width, rows, k.data(), v.data(), s, work.data(), keys.data(), values.data());
      int32_t counts[kRows];
      for (int64_t i = 0; i < kRows; ++i)
        counts[i] = static_cast<int32_t>(std::clamp<int64_t>(count(i) - begin, 0, rows));
      kernels.attend(q.data(), counts, kRows, keys.data(), values.data(), s, kScale, work.data(),
                     largest.data(), total.data(), sums.data());
    }
    kernels.end();
    std::vector<float> out;
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t c = 0; c < s.value; ++c)
        out.push_back(sums[static_cast<size_t>(i * s.value + c)] / total[static_cast<size_t>(i)]);
    }
    return out;
  }

  std::vector<double> expected() const {
    const ExpandedShape& s = shape;
    std::vector<std::vector<double>> keys, values;
    const auto times = [&](int64_t t, const std::vector<float>& b, int64_t columns) {
      std::vector<double> out(static_cast<size_t>(columns));
      for (int64_t r = 0; r < s.rank; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          out[static_cast<size_t>(c)] +=
              latent(t, r) * static_cast<double>(b[static_cast<size_t>(r * columns + c)]);
      }
      return out;
    };
    for (int64_t t = 0; t < kPositions; ++t) {
      keys.push_back(times(t, k_b, s.nope));
      for (int64_t c = 0; c < s.rope; ++c) keys.back().push_back(latent(t, s.rank + c));
      values.push_back(times(t, v_b, s.value));
    }
    std::vector<double> out;
    for (int64_t i = 0; i < kRows; ++i) {
      std::vector<double> scores, sums(static_cast<size_t>(s.value));
      for (int64_t t = 0; t < count(i); ++t) {
        double score = 0;
        for (int64_t c = 0; c < s.key(); ++c)
          score += static_cast<double>(queries[static_cast<size_t>(i * s.key() + c)]) *
                   keys[static_cast<size_t>(t)][static_cast<size_t>(c)];
        scores.push_back(static_cast<double>(kScale) * score);
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (size_t t = 0; t < scores.size(); ++t) {
        const double weight = std::exp(scores[t] - largest);
        total += weight;
        for (size_t c = 0; c < sums.size(); ++c) sums[c] += weight * values[t][c];
      }
      for (const double sum : sums) out.push_back(sum / total);
    }
    return out;
  }
};

constexpr ExpandedShape kShapes[] = {{512, 128, 64, 128}, {512, 192, 64, 256}, {64, 32, 32, 48}};

TEST(ExpandedKernels, AgreeWithSumsInDouble) {
  const std::vector<const Kernels*> list = all_kernels();
  if (list.empty()) GTEST_SKIP() << "no table of this machine begins with floats";
  for (const Kernels* kernels : list) {
    for (const ExpandedShape& shape : kShapes) {
      for (const bool uneven : {false, true}) {
        const Attention run(shape, uneven);
        // Tables that prepare rows multiply numbers of 16 bits: these keep 11 bits and more under a scale a
        // row, and a score's error becomes a weight's.
        const double limit = kernels->prepare != nullptr ? 0x1p-10 : 0x1p-18;
        EXPECT_LE(test::relative_error(run.results(*kernels), run.expected()), limit)
            << kernels->name << " " << shape.rank << " " << shape.nope << (uneven ? " uneven" : "");
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
