// Every op at every case on a Vulkan device against the reference: fused ops against their expansion.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/ref/ref_backend.h"
#include "base/error.h"
#include "support/op_agreement.h"
#include "support/vulkan.h"

namespace sluice::test {
namespace {

struct Param {
  const OpInfo* info;
  OpCase op_case;

  std::string name() const { return fmt::format("{} {}", info->name, op_case.name); }
  friend void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }
};

/// The cases of every op; and, of those that some kernels do otherwise for other numbers of rows, with those.
std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const OpInfo& op : all_ops()) {
    if (op.across_places) continue;  // a device is one place, and no kernel's business is several
    const std::string kind = op.name;
    size_t i = 0;
    for (const OpCase& op_case : op.cases()) {
      const auto is_of = [&](const char* part) { return op_case.name.find(part) != std::string::npos; };
      // Every format is decoded for one row, and those that rows in eight bits are multiplied with for
      // several; what is done with the numbers of others is the same for all.
      const bool of_runs = is_of("Q4_") || is_of("Q5_") || is_of("Q8_0") || is_of("Q6_K");
      const bool plain = kind != "matmul" || of_runs || is_of("F16");
      if (!plain && is_of("rows 7")) continue;
      list.push_back({&op, op_case});
      const bool by_rows = kind == "matmul" || kind == "head_matmul" || kind == "mla_attend" ||
                           kind == "attend" || kind == "norm_matmul" || kind == "matmul_add" ||
                           kind == "mla_heads" || kind == "norm_moe_gate_up" || kind == "norm_gate_up" ||
                           kind == "moe_down_add" || kind == "moe_gate_up" || kind == "expert_matmul";
      if (!plain || !by_rows) continue;
      // Where the ids are given, experts get tiles of their own: with 40 rows of 4 some have more than one.
      // Where they are chosen, rows are few: of many, some have probabilities below the normal numbers, which
      // devices may take for zero.
      const bool by_experts = kind == "moe_down_add" || kind == "moe_gate_up" || kind == "expert_matmul";
      const std::vector<int64_t> more = kind == "matmul"             ? std::vector<int64_t>{3, 20}
                                        : by_experts                 ? std::vector<int64_t>{20, 40, 70}
                                        : kind == "norm_moe_gate_up" ? std::vector<int64_t>{9, 20}
                                        : kind == "mla_heads"        ? std::vector<int64_t>{2, 9, 20}
                                                                     : std::vector<int64_t>{1, 2, 9};
      OpCase other = op_case;
      other.rows = more[i++ % more.size()];
      if (other.rows == op_case.rows) continue;
      other.name += fmt::format(" as rows {}", other.rows);
      list.push_back({&op, other});
    }
  }
  return list;
}

class VulkanOps : public testing::TestWithParam<Param> {};

TEST_P(VulkanOps, AgreeWithReference) {
  VULKAN_OR_SKIP(vulkan);
  CaseRun run(GetParam().op_case, 11);
  expect_agreement(run, *backend::make_ref_backend(), vulkan);
}

/// Devices that do not multiply four bytes at a time have kernels of their own.
TEST(VulkanOpsWithoutDot4, AgreeWithReference) {
  std::string why;
  const auto without = backend::make_vulkan_backend({.dot4 = false}, why);
  if (!without) GTEST_SKIP() << "skipped: vulkan: " << why;
  const auto judge = backend::make_ref_backend();
  size_t seen = 0;
  for (const char* kind : {"matmul", "moe_down_add", "norm_gate_up"}) {
    for (const OpInfo& op : all_ops()) {
      if (std::string(op.name) != kind) continue;
      for (const OpCase& op_case : op.cases()) {
        if (op_case.rows > 4 && op_case.name != "Q4_0 768x2048 rows 7") continue;
        SCOPED_TRACE(fmt::format("{} {}", kind, op_case.name));
        CaseRun run(op_case, 11);
        expect_agreement(run, *judge, *without);
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 20U);
}

/// Rows are multiplied eight at a time, an expert's two, four or eight; recordings are for 16, 32 and 64.
/// Where experts are chosen, many rows come near a tie: those of sigmoids are far enough from each other.
TEST(VulkanOpsOfSeveralRows, AgreeWithReference) {
  VULKAN_OR_SKIP(vulkan);
  const std::vector<std::pair<std::string, std::string>> some = {
      {"matmul", "Q4_0 768x2048 rows 7"},
      {"matmul", "F16 768x2048 rows 7"},
      {"matmul_add", "Q4_K 2048x20x256 rows 4"},
      {"norm_matmul", "Q4_0, Q4_K and F16 rows 5"},
      {"norm_gate_up", "Q6_K 1500x512 rows 1"},
      {"head_matmul", "Q8_0 v_b 20x256x512"},
      {"mla_heads", "20 heads with q rows 1"},
      {"expert_matmul", "Q4_0 4 of 16 256x512"},
      {"moe_gate_up", "4 of 16 with shared rows 9"},
      {"moe_gate_up", "4 of 64 alike Q4_K rows 5"},
      {"moe_gate_up", "4 of 16 alike MXFP4 rows 6"},
      {"moe_down_add", "4 of 64 Q4_0 with shared Q6_K rows 20"},
      {"moe_down_add", "4 of 16 MXFP4 rows 6"},
      {"norm_moe_gate_up", "sigmoid 4 of 64 with shared rows 1"}};
  const auto judge = backend::make_ref_backend();
  size_t seen = 0;
  for (const OpInfo& op : all_ops()) {
    for (OpCase op_case : op.cases()) {
      if (std::find(some.begin(), some.end(), std::pair<std::string, std::string>(op.name, op_case.name)) ==
          some.end())
        continue;
      ++seen;
      for (const int64_t rows : {9, 12, 16, 17, 24, 32, 33, 64}) {
        SCOPED_TRACE(fmt::format("{} {}, {} rows", op.name, op_case.name, rows));
        op_case.rows = rows;
        CaseRun run(op_case, 11);
        expect_agreement(run, *judge, vulkan);
      }
    }
  }
  EXPECT_EQ(seen, some.size());
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = param.param.name();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, VulkanOps, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace sluice::test
