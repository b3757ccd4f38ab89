// Every op at every case on the CPU backend against the reference: fused ops against their expansion.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "support/isas.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

struct Param {
  const OpInfo* info;
  OpCase op_case;
};

std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const OpInfo& op : all_ops()) {
    for (const OpCase& op_case : op.cases()) list.push_back({&op, op_case});
  }
  return list;
}

class OpTest : public testing::TestWithParam<Param> {};

/// With several numbers of threads by every tier: the reference's results serve them all.
TEST_P(OpTest, CpuAgreesWithReference) {
  CaseRun run(GetParam().op_case, 11);
  for (const Op& op : run.program().ops()) info(op).check(run.program(), op);
  const auto expected = results_by(run, *backend::make_ref_backend());
  for (const int threads : {1, 3}) {
    for (const backend::cpu::Isa isa : usable_isas()) {
      SCOPED_TRACE(fmt::format("{} threads, {}", threads, backend::cpu::isa_name(isa)));
      expect_agreement(run, expected, *backend::make_cpu_backend({.threads = threads, .isa = isa}));
    }
  }
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = fmt::format("{}_{}", param.param.info->name, param.param.op_case.name);
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
      const Program program = program_of(op_case);
      const auto rows = static_cast<double>(op_case.rows);
      for (const Op& record : program.ops()) {
        const Cost cost = info(record).cost(program, record, {.rows = rows, .outputs = rows});
        EXPECT_GT(cost.bytes_read, 0) << op.name << " " << op_case.name;
        EXPECT_GT(cost.bytes_written, 0) << op.name << " " << op_case.name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
