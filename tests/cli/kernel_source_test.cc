// Names and places of kernels: taken where a kernel is defined, so that one who renames or moves it changes
// what profiles say.
#include "cli/kernel_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/kernel.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class KernelSource : public testing::Test, public test::CommandFolder {
 protected:
  KernelSource() : CommandFolder("kernel_source") {}
};

TEST_F(KernelSource, StandsWhereProfilesSay) {
  const auto result = run("profile -n 1 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  int checked = 0;
  const json profile = json::parse(result.out);
  for (const json& row : profile["reports"][0]["rows"]) {
    const auto kernel = row["kernel"].get<std::string>();
    const std::string name = kernel.substr(0, kernel.find(','));
    const std::string source = read_file(SLUICE_SOURCE_DIR "/" + row["file"].get<std::string>());
    const std::string line = excerpt(source, row["line"].get<int>(), 0);
    EXPECT_THAT(line, HasSubstr("Kernel k")) << row.dump();
    EXPECT_THAT(line, HasSubstr('"' + name + '"')) << row.dump();
    ++checked;
  }
  EXPECT_GE(checked, 10);
}

TEST_F(KernelSource, IsShownWithResources) {
  const std::string out = run("profile -n 2 --with-source").out;
  EXPECT_THAT(out, HasSubstr("panels of 16 outputs x "));
  EXPECT_THAT(out, HasSubstr("B a weight"));
  EXPECT_THAT(out, testing::ContainsRegex("[0-9]  const Kernel k[A-Z]")) << out;
}

TEST_F(KernelSource, IsTheFunctionThatTheDefinitionNames) {
  const std::string text =
      "void twice(int x) {\n  double it;\n}\n\nint twice_scratch() {\n  return twice(1);\n}\n\n}  // "
      "namespace\n"
      "const Kernel kTwice{\"twice\", Share::Rows, twice, twice_scratch};\nrest\n";
  EXPECT_EQ(excerpt(text, 10, 40),
            "    1  void twice(int x) {\n    2    double it;\n    3  }\n"
            "   10  const Kernel kTwice{\"twice\", Share::Rows, twice, twice_scratch};\n");
  EXPECT_EQ(excerpt(text, 10, 1),
            "    1  void twice(int x) {\n"
            "   10  const Kernel kTwice{\"twice\", Share::Rows, twice, twice_scratch};\n");
  EXPECT_EQ(excerpt(text, 11, 40), "   11  rest\n");
  EXPECT_EQ(excerpt(text, 99, 40), "");
  EXPECT_EQ(excerpt("", 0, 40), "");
}

TEST_F(KernelSource, IsTheFunctionOfTheDeviceThatIsStarted) {
  const std::string text =
      "__global__ void __launch_bounds__(kMost, 2) once(int x) {\n}\n\ntemplate <int kN>\n"
      "__global__ void __launch_bounds__(kMost)\n    twice(int x) {\n  use(x);\n}\nvoid start() { twice(1); "
      "}\n";
  EXPECT_EQ(device_function(text, "twice", 40),
            "    5  __global__ void __launch_bounds__(kMost)\n    6      twice(int x) {\n    7    use(x);\n  "
            "  8  }\n");
  EXPECT_EQ(device_function(text, "twice", 1), "    5  __global__ void __launch_bounds__(kMost)\n");
  EXPECT_EQ(device_function(text, "start", 40), "");
  EXPECT_EQ(device_function(text, "tw", 40), "");
  EXPECT_EQ(device_function(text, "tw.*", 40), "");
}

// From here on this file is another one, as far as the compiler knows.
#line 1000 "src/backend/cpu/ops/elsewhere.cc"
const backend::cpu::Kernel kMoved{"new name", backend::cpu::Share::Rows, nullptr, nullptr};

TEST_F(KernelSource, FollowsAKernelThatMoves) {
  EXPECT_STREQ(kMoved.file, "src/backend/cpu/ops/elsewhere.cc");
  EXPECT_EQ(kMoved.line, 1000);
}

}  // namespace
}  // namespace sluice::cli
