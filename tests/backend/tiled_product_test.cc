// Products on tiles of more columns than a chunk of rows can have at once: columns go in blocks, steps in
// ranges and rows in chunks, and none of these changes a result.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/simd/tiles.h"
#include "support/op_case.h"

namespace sluice::backend {
namespace {

using namespace test;

constexpr int64_t kColumns = 4 * 1024 + 32;  // the last block is one of 32 columns
constexpr int64_t kOutputs = 16 * 2 * 70;    // more steps than wait for a block at 512 rows

class TiledProduct : public testing::Test {
 protected:
  void SetUp() override {
    if (cpu::best_isa() != cpu::Isa::Amx) GTEST_SKIP() << "this machine has no AMX";
  }
};

/// x times a matrix, by a worker team of this size.
struct Products {
  CaseRun run;
  std::vector<float> x, out;

  Products(int64_t rows, int threads)
      : run({"", rows,
             [](Builder& b) {
               const TensorId in = b.activation("x", kStepRows, 1, kColumns);
               b.matmul(in, b.weight("w", quant::Type::Q4_0, 1, kOutputs, kColumns));
             }},
            3) {
    const auto backend = make_cpu_backend({.threads = threads, .isa = cpu::Isa::Amx});
    const auto executable = run.compile(*backend);
    run.run(*executable);
    out.resize(static_cast<size_t>(rows * kOutputs));
    executable->peek(run.results()[0], rows, out);
    x.resize(static_cast<size_t>(rows * kColumns));
    executable->peek(0, rows, x);
  }
};

TEST_F(TiledProduct, IsThatOfTheDecodedWeights) {
  const Products products(512, 1);
  const quant::TypeInfo& type = quant::type_info(quant::Type::Q4_0);
  std::vector<float> weights(kColumns);
  double error = 0, norm = 0;
  for (int64_t n = 0; n < kOutputs; n += 37) {
    type.decode(products.run.weights()[1].data() + n * quant::bytes_of(type, kColumns), weights.data(),
                kColumns);
    for (int64_t r = 0; r < 512; r += 31) {
      double sum = 0;
      for (int64_t c = 0; c < kColumns; ++c)
        sum += static_cast<double>(products.x[r * kColumns + c]) * static_cast<double>(weights[c]);
      const double off = sum - static_cast<double>(products.out[r * kOutputs + n]);
      error += off * off, norm += sum * sum;
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 1.0 / 256);  // both factors have eight bits
}

/// The first rows of a step of `rows`, the other way: few of them are multiplied while their panels are
/// unpacked.
TEST_F(TiledProduct, OfManyRowsIsThatOfFew) {
  for (const quant::Type type : {quant::Type::Q4_0, quant::Type::Q6_K, quant::Type::Q4_K}) {
    for (const int64_t columns : {1280, 512, 256}) {  // stretches of 512 columns, and of less
      constexpr int64_t kSomeOutputs = 16 * 7;
      const int64_t few = cpu::kFewGroups * cpu::kGroupRows;
      for (const int64_t rows : {97, 150, 700}) {
        CaseRun run({"", rows,
                     [&](Builder& b) {
                       const TensorId in = b.activation("x", kStepRows, 1, columns);
                       b.matmul(in, b.weight("w", type, 1, kSomeOutputs, columns));
                     }},
                    5);
        const auto backend = make_cpu_backend({.threads = 1, .isa = cpu::Isa::Amx});
        const auto executable = run.compile(*backend);
        std::vector<float> all(static_cast<size_t>(rows * kSomeOutputs));
        run_step(*executable, {.input = run.step()});
        executable->peek(run.results()[0], rows, all);
        run.poke_inputs(*executable);
        run_step(*executable, {.input = run.step().part(0, few)});
        std::vector<float> some(static_cast<size_t>(few * kSomeOutputs));
        executable->peek(run.results()[0], few, some);
        all.resize(some.size());
        EXPECT_EQ(all, some) << quant::type_info(type).name << ", " << columns << " columns, " << rows
                             << " rows";
      }
    }
  }
}

TEST_F(TiledProduct, IsTheSameWhateverTheRowsAndThreads) {
  const Products all(600, 1);  // two chunks
  EXPECT_EQ(all.out, Products(600, 3).out);
}

}  // namespace
}  // namespace sluice::backend
