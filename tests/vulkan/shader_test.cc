// Shaders as other tools see them: valid SPIR-V, and translatable as MoltenVK does it for Apple's GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace sluice::test {
namespace {

bool is_installed(const std::string& tool) {
  return std::system(("command -v " + tool + " >/dev/null").c_str()) == 0;
}

std::vector<std::filesystem::path> shaders() {
  std::vector<std::filesystem::path> list;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SHADERS, error)) {
    if (entry.path().extension() == ".spv") list.push_back(entry.path());
  }
  return list;
}

TEST(Shaders, AreValid) {
  if (!is_installed("spirv-val") || shaders().empty()) GTEST_SKIP() << "skipped: spirv-val: not installed";
  for (const auto& shader : shaders())
    EXPECT_EQ(std::system(fmt::format("spirv-val --target-env vulkan1.1 '{}'", shader.string()).c_str()), 0)
        << shader;
}

TEST(Shaders, AreTranslatedToMetal) {
  if (!is_installed("spirv-cross") || shaders().empty())
    GTEST_SKIP() << "skipped: spirv-cross: not installed";
  for (const auto& shader : shaders()) {
    if (shader.stem().string().ends_with("_dot4")) continue;  // Apple's GPUs have the form without
    const std::string out = testing::TempDir() + shader.stem().string() + ".metal";
    EXPECT_EQ(std::system(fmt::format("spirv-cross --msl --msl-version 20300 --msl-argument-buffers "
                                      "--msl-fixed-subgroup-size 32 '{}' --output '{}'",
                                      shader.string(), out)
                              .c_str()),
              0)
        << shader;
    const std::string text = read_file(out);
    EXPECT_NE(text.find("kernel void"), std::string::npos) << shader;
    for (const char* lacking : {"double ", "atomic_ulong"})  // Apple's GPUs have neither
      EXPECT_EQ(text.find(lacking), std::string::npos) << shader;
  }
}

}  // namespace
}  // namespace sluice::test
