// Every op at every case on the CUDA backend against the reference: fused ops against their expansion.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "base/error.h"
#include "support/cuda.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

struct Param {
  const OpInfo* info;
  OpCase op_case;

  std::string name() const { return fmt::format("{} {}", info->name, op_case.name); }
  friend void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }
};

/// The cases of every op, and each again with more rows: those of the other buckets.
std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const OpInfo& op : all_ops()) {
    if (op.across_places) continue;  // a device is one place, and no kernel's business is several
    for (const OpCase& op_case : op.cases()) {
      list.push_back({&op, op_case});
      for (const int64_t rows : {1, 2, 3, 8, 9, 20, 40, 70}) {
        if (rows == op_case.rows) continue;
        OpCase other = op_case;
        other.rows = rows;
        other.name += fmt::format(" as rows {}", rows);
        list.push_back({&op, other});
      }
    }
  }
  return list;
}

class CudaOps : public testing::TestWithParam<Param> {};

TEST_P(CudaOps, AgreeWithReference) {
  CUDA_OR_SKIP(cuda);
  CaseRun run(GetParam().op_case, 11);
  expect_agreement(run, *backend::make_ref_backend(), cuda);
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = param.param.name();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaOps, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace sluice::test
