// embed, where the token table is the output matrix as well: its rows come out of the panels that products
// read, because the file's pages were given back when those were packed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "support/op_case.h"

namespace sluice::backend {
namespace {

using namespace test;

class EmbedTest : public testing::TestWithParam<quant::Type> {
 protected:
  static constexpr int64_t kTokens = 1000, kColumns = 256, kRows = 21;

  EmbedTest()
      : run_({"", kRows,
              [this](Builder& b) {
                table_ = b.weight("table", GetParam(), 1, kTokens, kColumns);
                embedded_ = b.embed(table_);
                b.matmul(embedded_, table_);
              }},
             5),
        file_(run_.weights()[table_].begin(), run_.weights()[table_].end()),
        weights_(run_.weights()) {
    weights_[table_] = file_;
  }

  /// The rows of the step's tokens, after the file's bytes were overwritten.
  std::vector<float> embedded_without_the_file(bool repack) {
    auto backend = make_cpu_backend({.threads = 2, .repack = repack});
    auto executable = backend->compile(run_.program(), weights_, {kRows, kRows, 1});
    std::fill(file_.begin(), file_.end(), std::byte{0xFF});
    run_.run(*executable);
    std::vector<float> rows(kRows * kColumns);
    executable->peek(embedded_, kRows, rows);
    return rows;
  }
  std::vector<float> expected() const {
    const quant::TypeInfo& type = quant::type_info(GetParam());
    std::vector<float> rows(kRows * kColumns);
    for (size_t r = 0; r < kRows; ++r) {
      const auto token = static_cast<int64_t>(run_.step().tokens[r]);
      type.decode(run_.weights()[table_].data() + token * quant::bytes_of(type, kColumns),
                  rows.data() + r * kColumns, kColumns);
    }
    return rows;
  }

 private:
  TensorId table_ = kNoTensor, embedded_ = kNoTensor;
  CaseRun run_;
  std::vector<std::byte> file_;
  WeightBytes weights_;
};

TEST_P(EmbedTest, ReadsThePanelsAndNotTheFile) { EXPECT_EQ(embedded_without_the_file(true), expected()); }

TEST_P(EmbedTest, ReadsTheFileWhereNothingIsPacked) {
  EXPECT_NE(embedded_without_the_file(false), expected());
}

INSTANTIATE_TEST_SUITE_P(Types, EmbedTest,
                         testing::Values(quant::Type::F16, quant::Type::Q4_0, quant::Type::Q8_0,
                                         quant::Type::Q6_K),
                         [](const auto& param) { return std::string(quant::type_info(param.param).name); });

}  // namespace
}  // namespace sluice::backend
