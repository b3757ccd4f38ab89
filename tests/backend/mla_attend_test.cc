// Attention's kernels one by one against sums in double, and that a row's bits do not depend on how it was
// computed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/simd/attend.h"
#include "backend/ref/ref_backend.h"
#include "base/half.h"
#include "program/builder.h"
#include "support/isas.h"
#include "support/relative_error.h"

namespace sluice::backend::cpu {

#if defined(__x86_64__)
extern const AttendKernels kAttendAvx512, kAttendAvx512Fp16, kAttendAvx512Bf16;
#endif

namespace {

/// Those of every tier that this machine has, and what else of the tier avx512 it could run.
std::vector<const AttendKernels*> all_kernels() {
  std::vector<const AttendKernels*> list;
  for (const Isa isa : test::usable_isas()) list.push_back(&attend_kernels(isa));
#if defined(__x86_64__)
  const auto add = [&](bool there, const AttendKernels& kernels) {
    if (there && &kernels != &attend_kernels(Isa::Avx512)) list.push_back(&kernels);
  };
  add(best_isa() >= Isa::Avx512, kAttendAvx512);
  add(has_avx512_fp16(), kAttendAvx512Fp16);
  add(best_isa() >= Isa::Avx512 && __builtin_cpu_supports("avx512bf16") != 0, kAttendAvx512Bf16);
#endif
  return list;
}

struct Case {
  int64_t queries;
  AttendShape shape;
  int64_t most = kChunkRows;  // rows that a query sees
};
constexpr Case kCases[] = {{32, {576, 512}}, {20, {576, 512}},     {16, {576, 512}},
                           {8, {160, 128}},  {5, {96, 64}},        {17, {72, 40}},
                           {1, {33, 33}},    {20, {576, 512}, 75}, {4, {576, 512}, 33}};
constexpr float kScale = 0.07f;

/// What the tile is decoded from; InPlace: from nothing, the rows are read where they lie; Q8InPlace: no more
/// than rows of bfloat16 are made of those in eight bits.
enum class Rows { F16, F32, Q8, Q8InPlace, Bf16, InPlace };

/// Random queries and cache rows, and room that is full of NaN until something is written there.
class ChunkRun {
 public:
  /// uneven: rows of very different size take turns, one of them of nothing but zeroes.
  ChunkRun(const AttendKernels& kernels, const Case& c, Rows how = Rows::F16, bool uneven = false)
      : kernels_(kernels), c_(c), how_(how) {
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<size_t>(kChunkRows * c.shape.width));
    constexpr float kSizes[] = {1, 0.002f, 80, 0, 0.02f};
    for (size_t i = 0; i < rows_.size(); ++i) {
      const size_t row = i / static_cast<size_t>(c.shape.width);
      rows_[i] = f32_to_f16(normal(random_) * (uneven ? kSizes[row % std::size(kSizes)] : 1.0f));
    }
    for (size_t i = 0; i < rows_.size(); ++i)
      pages_[2 * i / rows_.size()].push_back(f32_to_bf16(f16_to_f32(rows_[i])));
    // All whole runs of the rank in eight bits, with scales of their own, the other columns as they are.
    std::mt19937 random(8);
    std::normal_distribution<float> normal_of_scales;
    const quant::CacheRow format = q8();
    bytes_.assign(static_cast<size_t>(kChunkRows * format.bytes()), std::byte{0x7F});
    for (int64_t t = 0; t < kChunkRows; ++t) {
      std::byte* row = bytes_.data() + t * format.bytes();
      for (int64_t i = 0; i < format.coded(); ++i)
        row[i] = static_cast<std::byte>(static_cast<int8_t>(static_cast<int>(random() % 255) - 127));
      for (int64_t i = 0; i < format.coded() / quant::kCacheRun; ++i)
        put_half(row + format.scales_at() + 2 * i,
                 f32_to_f16(0.01f * std::exp2(normal_of_scales(random) / 2)));
      for (int64_t i = format.coded(); i < format.columns; ++i)
        put_half(row + format.exact_at() + 2 * (i - format.coded()), half(t, i));
    }
    queries_.resize(static_cast<size_t>(c.queries * c.shape.width));
    for (float& x : queries_) x = normal(random_);
    for (int64_t i = 0; i < c.queries; ++i)
      counts_.push_back(static_cast<int32_t>(1 + random_() % static_cast<uint64_t>(c.most)));
  }

  /// Results [count][rank] of queries from `first` on, divided by their totals.
  std::vector<float> run(int64_t first, int64_t count) {
    const AttendShape shape = c_.shape;
    const auto room = [](int64_t floats) {
      return std::vector<float>(static_cast<size_t>(floats), std::numeric_limits<float>::quiet_NaN());
    };
    std::vector<float> tile = room(kernels_.tile_floats(shape)), packed = room(kernels_.packed_floats(shape));
    std::vector<float> work = room(kernels_.work_floats(shape)), largest = room(kQueries), total = largest;
    std::vector<float> sums = room(kQueries * kernels_.sums_stride(shape)), out;
    const int32_t* counts = counts_.data() + first;
    const int64_t longest = *std::max_element(counts, counts + count);
    for (int64_t at = 0; at < longest; at += 64) {
      const int64_t rows = std::min<int64_t>(64, longest - at);
      const uint16_t* halves = rows_.data() + at * shape.width;
      if (how_ == Rows::InPlace) break;
      if (how_ == Rows::Bf16) {
        kernels_.decode_bf16(pages_[at / kHalfRows].data(), shape, at, rows, tile.data());
      } else if (how_ == Rows::Q8 || how_ == Rows::Q8InPlace) {
        const quant::CacheRow format = q8();
        const auto decode = how_ == Rows::Q8 ? kernels_.decode_q8 : kernels_.decode_q8_keys;
        decode({bytes_.data() + at * format.bytes(), format.bytes(), format.coded(), format.exact_at(),
                format.scales_at()},
               shape, at, rows, tile.data());
      } else if (how_ == Rows::F32) {
        std::vector<float> floats(static_cast<size_t>(rows * shape.width));
        for (size_t i = 0; i < floats.size(); ++i) floats[i] = f16_to_f32(halves[i]);
        kernels_.decode_f32(floats.data(), shape, at, rows, tile.data());
      } else {
        kernels_.decode_f16(halves, shape, at, rows, tile.data());
      }
    }
    std::vector<const float*> q;
    for (int64_t i = 0; i < count; ++i) q.push_back(queries_.data() + (first + i) * shape.width);
    kernels_.pack(q.data(), count, shape, packed.data());
    const ChunkResult result{largest.data(), total.data(), sums.data()};
    if (how_ == Rows::InPlace) {
      std::vector<uint16_t> halves[] = {pages_[0], pages_[1]};
      if (kernels_.ends_in_place) {  // nobody sees what lies behind the longest
        constexpr uint16_t kNaN = 0x7FFF;
        for (int64_t t = longest; t < kChunkRows; ++t)
          std::fill_n(halves[t / kHalfRows].begin() + t % kHalfRows * shape.width, shape.width, kNaN);
      }
      const uint16_t* const pages[] = {halves[0].data(), longest > kHalfRows ? halves[1].data() : nullptr};
      kernels_.attend_pages(packed.data(), counts, count, pages, shape, kScale, work.data(), {}, result);
    } else if (how_ == Rows::Q8InPlace) {
      const auto* made = reinterpret_cast<const uint16_t*>(tile.data());
      const uint16_t* const pages[] = {made, longest > kHalfRows ? made + kHalfRows * shape.width : nullptr};
      kernels_.attend_pages(packed.data(), counts, count, pages, shape, kScale, work.data(), {}, result);
    } else {
      kernels_.attend(packed.data(), counts, count, tile.data(), shape, kScale, work.data(), {}, result);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* row = sums.data() + i * kernels_.sums_stride(shape);
      for (int64_t n = 0; n < shape.rank; ++n) out.push_back(row[n] / total[static_cast<size_t>(i)]);
    }
    return out;
  }

  std::vector<double> expected() const {
    const quant::CacheRow format = q8();
    const auto row = [&](int64_t t, int64_t i) {
      if (how_ >= Rows::Bf16) {
        const auto at = static_cast<size_t>(t % kHalfRows * c_.shape.width + i);
        return static_cast<double>(bf16_to_f32(pages_[t / kHalfRows][at]));
      }
      if (how_ < Rows::Q8 || i >= format.coded()) return static_cast<double>(f16_to_f32(half(t, i)));
      const std::byte* at = bytes_.data() + t * format.bytes();
      uint16_t scale;
      std::memcpy(&scale, at + format.scales_at() + i / quant::kCacheRun * 2, sizeof scale);
      return static_cast<double>(f16_to_f32(scale)) * static_cast<double>(static_cast<int8_t>(at[i]));
    };
    std::vector<double> out;
    for (int64_t q = 0; q < c_.queries; ++q) {
      std::vector<double> sums(static_cast<size_t>(c_.shape.rank));
      double total = 0;
      for (int64_t t = 0; t < counts_[static_cast<size_t>(q)]; ++t) {
        double score = 0;
        for (int64_t i = 0; i < c_.shape.width; ++i) {
          score += static_cast<double>(queries_[static_cast<size_t>(q * c_.shape.width + i)]) * row(t, i);
        }
        const double weight = std::exp(static_cast<double>(kScale) * score);
        total += weight;
        for (int64_t n = 0; n < c_.shape.rank; ++n) sums[static_cast<size_t>(n)] += weight * row(t, n);
      }
      for (const double sum : sums) out.push_back(sum / total);
    }
    return out;
  }

 private:
  uint16_t half(int64_t t, int64_t i) const { return rows_[static_cast<size_t>(t * c_.shape.width + i)]; }
  quant::CacheRow q8() const {
    const int64_t coded = c_.shape.rank / quant::kCacheRun * quant::kCacheRun;
    return {quant::Type::Q8_0, c_.shape.width, c_.shape.width - coded};
  }
  static void put_half(std::byte* at, uint16_t half) { std::memcpy(at, &half, sizeof half); }

  const AttendKernels& kernels_;
  Case c_;
  Rows how_;
  std::mt19937 random_{7};
  std::vector<std::byte> bytes_;  ///< the rows in eight bits
  std::vector<uint16_t> rows_;
  std::vector<uint16_t> pages_[2];  ///< half of the rows each, in bfloat16
  std::vector<float> queries_;
  std::vector<int32_t> counts_;
};

TEST(AttendKernels, AgreeWithSumsInDouble) {
  for (const AttendKernels* kernels : all_kernels()) {
    for (const Case& c : kCases) {
      for (const Rows how : {Rows::F16, Rows::F32, Rows::Q8}) {
        ChunkRun run(*kernels, c, how);
        const std::vector<double> expected = run.expected();
        const std::vector<float> actual = run.run(0, c.queries);
        // Four operands, each off by half a unit in its last bit at most; float32's sums come to more.
        EXPECT_LE(test::relative_error(actual, expected),
                  kernels->bits < 24 ? std::ldexp(1, -kernels->bits) : 0x1p-20)
            << kernels->name << " " << c.queries << " of " << c.shape.width << " from "
            << static_cast<int>(how);
      }
    }
  }
}

TEST(AttendKernels, RowsOfBfloat16AreTheSameBitsWhereTheyLie) {
  int compared = 0;
  for (const AttendKernels* kernels : all_kernels()) {
    if (kernels->attend_pages == nullptr) continue;
    for (const Case& c : kCases) {
      ChunkRun decoded(*kernels, c, Rows::Bf16);
      const std::vector<float> expected = decoded.run(0, c.queries);
      EXPECT_LE(test::relative_error(expected, decoded.expected()), std::ldexp(1, -kernels->bits))
          << kernels->name;
      if (c.shape.width % kRowColumns != 0) continue;
      EXPECT_EQ(ChunkRun(*kernels, c, Rows::InPlace).run(0, c.queries), expected)
          << kernels->name << " " << c.queries << " of " << c.shape.width;
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "no kernels here attend to rows where they lie";
}

TEST(AttendKernels, RowsMadeOfEightBitsAreTheSameBitsAsATile) {
  int compared = 0;
  for (const AttendKernels* kernels : all_kernels()) {
    if (kernels->decode_q8_keys == nullptr) continue;
    for (const Case& c : kCases) {
      if (c.shape.width % kRowColumns != 0) continue;
      EXPECT_EQ(ChunkRun(*kernels, c, Rows::Q8InPlace).run(0, c.queries),
                ChunkRun(*kernels, c, Rows::Q8).run(0, c.queries))
          << kernels->name << " " << c.queries << " of " << c.shape.width;
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "no kernels here make rows of eight bits";
}

TEST(AttendKernels, RowsMayBeOfVeryDifferentSize) {
  for (const AttendKernels* kernels : all_kernels()) {
    for (const Case& c : kCases) {
      ChunkRun run(*kernels, c, Rows::F16, true);
      const std::vector<double> expected = run.expected();
      const std::vector<float> actual = run.run(0, c.queries);
      // Scores of hundreds: what they are off by is 16 times as much of a weight.
      EXPECT_LE(test::relative_error(actual, expected), std::ldexp(1, 4 - std::min(kernels->bits, 16)))
          << kernels->name << " " << c.queries << " of " << c.shape.width;
    }
  }
}

TEST(AttendKernels, AQueryDoesNotDependOnItsNeighbours) {
  for (const AttendKernels* kernels : all_kernels()) {
    for (const Case& c : kCases) {
      ChunkRun run(*kernels, c);
      const std::vector<float> together = run.run(0, c.queries);
      for (int64_t i = 0; i < c.queries; i += 3) {
        const auto begin = together.begin() + i * c.shape.rank;
        EXPECT_EQ(run.run(i, 1), std::vector<float>(begin, begin + c.shape.rank))
            << kernels->name << " query " << i;
      }
    }
  }
}

/// A program of one attention, run over a long sequence in steps of some size: the results of the last rows.
/// What the beginning attends to is of no interest: it fills its pages as though each were a sequence of its
/// own.
class LongSequence {
 public:
  static constexpr int64_t kLength = 8500, kLast = 20, kHeads = 3, kRank = 32;

  LongSequence(quant::Type cache, int64_t rope) : width_(kRank + rope) {
    program::Builder b(program_);
    const program::TensorId rows = b.cache(1, width_, cache, rope);
    latent_ = b.activation("latent", program::kStepRows, 1, kRank);
    key_ = b.activation("key", program::kStepRows, 1, rope);
    q_ = b.activation("q", program::kStepRows, kHeads, width_);
    b.kv_append(latent_, key_, rows, 0);
    out_ = b.mla_attend(q_, rows, kRank, 0.1f, 0);
    program_.set_output(out_);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    values_.resize(static_cast<size_t>(kLength * (1 + kHeads) * width_));
    for (float& x : values_) x = normal(random);
    for (int32_t i = 0; i < kLength / program::kPageRows + 1; ++i) pages_.push_back(i);
  }

  /// The first step takes the long beginning, the others `rows` rows each.
  std::vector<float> last_rows(program::Backend& backend, int64_t rows) {
    const auto executable =
        backend.compile(program_, program::WeightBytes(program_.tensors().size()),
                        {kLength - kLast, kLength - kLast, static_cast<int32_t>(pages_.size())});
    std::vector<float> results;
    for (int64_t at = 0; at < kLength;) {
      const int64_t count = at == 0 ? kLength - kLast : std::min(rows, kLength - at);
      step(*executable, at, count);
      if (at > 0) {
        std::vector<float> out(static_cast<size_t>(count * kHeads * kRank));
        executable->peek(out_, count, out);
        results.insert(results.end(), out.begin(), out.end());
      }
      at += count;
    }
    return results;
  }

  /// The result of a row whose sequence ends in the middle of a page, behind which other rows lie.
  std::vector<float> row_before_others(program::Backend& backend, bool others_are_numbers) {
    constexpr int64_t kRow = 98, kFilled = 128;
    std::vector<float> values = values_;
    for (int64_t r = kRow + 1; r < kFilled && !others_are_numbers; ++r)
      std::fill_n(values_.begin() + r * (1 + kHeads) * width_, width_, std::nanf(""));
    const auto executable = backend.compile(program_, program::WeightBytes(program_.tensors().size()),
                                            {kFilled, kFilled, static_cast<int32_t>(pages_.size())});
    step(*executable, 0, kFilled);
    step(*executable, kRow, 1);
    std::vector<float> out(static_cast<size_t>(kHeads * kRank));
    executable->peek(out_, 1, out);
    values_ = values;
    return out;
  }

 private:
  void step(program::Executable& executable, int64_t at, int64_t count) {
    std::vector<float> latent, key, q;
    std::vector<int32_t> positions, slots, sequences, zeroes(static_cast<size_t>(count), 0);
    const bool beginning = at == 0;
    for (int64_t r = at; r < at + count; ++r) {
      const float* row = values_.data() + r * (1 + kHeads) * width_;
      latent.insert(latent.end(), row, row + kRank);
      key.insert(key.end(), row + kRank, row + width_);
      q.insert(q.end(), row + width_, row + (1 + kHeads) * width_);
      slots.push_back(static_cast<int32_t>(r));  // page 0 is the first, 1 the second
      positions.push_back(static_cast<int32_t>(beginning ? r % program::kPageRows : r));
      sequences.push_back(static_cast<int32_t>(beginning ? r / program::kPageRows : 0));
    }
    executable.poke(latent_, count, latent);
    executable.poke(key_, count, key);
    executable.poke(q_, count, q);
    const int32_t pages = beginning ? 1 : static_cast<int32_t>(pages_.size());
    run_step(executable, {.input = {zeroes, positions, sequences, slots, pages_, pages, {}}});
  }

  int64_t width_;
  program::Program program_;
  program::TensorId latent_, key_, q_, out_;
  std::vector<float> values_;
  std::vector<int32_t> pages_;
};

void expect_the_same_bits(quant::Type cache, int64_t rope) {
  LongSequence sequence(cache, rope);
  const std::vector<float> expected = sequence.last_rows(*make_ref_backend(), 20);
  for (const Isa isa : test::usable_isas()) {
    const auto run = [&](int threads, int64_t rows) {
      return sequence.last_rows(*make_cpu_backend({.threads = threads, .isa = isa}), rows);
    };
    const std::vector<float> one = run(1, 1);
    EXPECT_LE(test::relative_error(one, expected), attend_kernels(isa).bits == 8 ? 0x1p-8 : 0x1p-11)
        << isa_name(isa);
    EXPECT_EQ(one, run(1, 20)) << isa_name(isa);
    EXPECT_EQ(one, run(2, 1)) << isa_name(isa);  // 67 chunks: more than the workers keep at once
    EXPECT_EQ(one, run(3, 7)) << isa_name(isa);
    EXPECT_EQ(one, run(5, 20)) << isa_name(isa);
  }
}

TEST(MlaAttend, TheSameBitsHoweverTheWorkIsShared) { expect_the_same_bits(quant::Type::F16, 16); }
/// Rows of 64 numbers: bfloat16, read where they lie, on tiers that do so.
TEST(MlaAttend, TheSameBitsHoweverTheWorkIsSharedOfWholeVectors) {
  expect_the_same_bits(quant::Type::F16, 32);
}
TEST(MlaAttend, TheSameBitsHoweverTheWorkIsSharedInEightBits) { expect_the_same_bits(quant::Type::Q8_0, 16); }

TEST(MlaAttend, WhatLiesBehindASequenceMayBeNoNumber) {
  LongSequence sequence(quant::Type::F16, 32);
  for (const Isa isa : test::usable_isas()) {
    const auto backend = make_cpu_backend({.threads = 2, .isa = isa});
    const std::vector<float> expected = sequence.row_before_others(*backend, true);
    EXPECT_TRUE(std::isfinite(expected[0])) << isa_name(isa);
    EXPECT_EQ(sequence.row_before_others(*backend, false), expected) << isa_name(isa);
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
