// Every op at every case on the CPU backend against the reference: fused ops against their expansion.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "support/isas.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

std::vector<float> run_and_peek(CaseRun& run, Executable& executable, TensorId id) {
  // Results start as NaN, so that an element nobody writes shows.
  std::vector<float> values(run.elements(id), std::numeric_limits<float>::quiet_NaN());
  if (run.program()[id].type != quant::Type::I32) executable.poke(id, run.rows_of(id), values);
  run.run(executable);
  executable.peek(id, run.rows_of(id), values);
  return values;
}

struct Param {
  const OpInfo* info;
  OpCase op_case;
  int threads;
  backend::cpu::Isa isa;
};

std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) {
      for (const int threads : {1, 3}) {
        for (const backend::cpu::Isa isa : usable_isas()) list.push_back({&op, op_case, threads, isa});
      }
    }
  }
  return list;
}

class OpTest : public testing::TestWithParam<Param> {};

TEST_P(OpTest, CpuAgreesWithReference) {
  CaseRun run(GetParam().op_case, 11);
  for (const Op& op : run.program().ops()) info(op).check(run.program(), op);
  const auto ref = backend::make_ref_backend();
  const auto cpu = backend::make_cpu_backend({.threads = GetParam().threads, .isa = GetParam().isa});
  const auto expected_by = run.compile(*ref), actual_by = run.compile(*cpu);
  for (const TensorId id : run.results()) {
    const auto expected = run_and_peek(run, *expected_by, id), actual = run_and_peek(run, *actual_by, id);
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::isfinite(expected[i])) << run.program()[id].name << " element " << i;
      ASSERT_TRUE(std::isfinite(actual[i])) << run.program()[id].name << " element " << i;
      error += std::pow(expected[i] - actual[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_GT(norm, 0) << "a result of zeros proves nothing";
    EXPECT_LE(std::sqrt(error / norm), cpu->tolerance(run.program())) << run.program()[id].name;
  }
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = fmt::format("{}_{}_threads{}_{}", param.param.info->name, param.param.op_case.name,
                                 param.param.threads, backend::cpu::isa_name(param.param.isa));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTest, testing::ValuesIn(all_cases()), name_of);

TEST(Ops, EveryKindHasCasesAndOneMeaning) {
  for (const OpInfo& op : all_ops()) {
    EXPECT_FALSE(op.cases().empty()) << op.name;
    EXPECT_NE(op.reference == nullptr, op.expand == nullptr) << op.name;
    for (const OpCase& op_case : op.cases()) {
      CaseRun run(op_case, 1);
      const StepShape shape{.rows = static_cast<double>(run.rows()),
                            .outputs = static_cast<double>(run.rows())};
      for (const Op& record : run.program().ops()) {
        const Cost cost = info(record).cost(run.program(), record, shape);
        EXPECT_GT(cost.bytes_read, 0) << op.name << " " << op_case.name;
        EXPECT_GT(cost.bytes_written, 0) << op.name << " " << op_case.name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
