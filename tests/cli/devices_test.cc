// sluice devices: what a machine has, with or without GPUs.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/command.h"

namespace sluice::test {
namespace {

TEST(Devices, NamesTheProcessorAndSaysWhatIsNotThere) {
  const CommandFolder folder("devices");
  const CommandResult listed = folder.run("devices --json");
  ASSERT_EQ(listed.code, 0) << listed.err;
  const auto json = nlohmann::json::parse(listed.out);
  ASSERT_FALSE(json["devices"].empty());
  EXPECT_EQ(json["devices"][0]["backend"], "cpu");
  const auto has = [&](const std::string& backend) {
    for (const auto& device : json["devices"]) {
      if (device["backend"].get<std::string>().starts_with(backend)) return true;
    }
    return false;
  };
  // Of each kind there are devices, or there is a reason why not.
  EXPECT_NE(has("cuda:"), json.contains("no_cuda"));
  EXPECT_NE(has("vulkan:"), json.contains("no_vulkan"));
}

TEST(Devices, ReportHoldsOpsErrorsAndRates) {
  const CommandFolder folder("devices_report");
  const std::string path = folder.path("report.json");
  const CommandResult told = folder.run("devices --backend cpu --report " + path);
  ASSERT_EQ(told.code, 0) << told.err;
  const auto report = nlohmann::json::parse(read_file(path));
  EXPECT_GT(report["tokens_per_second"]["one_sequence"].get<double>(), 0);
  ASSERT_EQ(report["compared"].size(), 2U);
  for (const auto& rows : report["compared"]) {
    EXPECT_TRUE(rows["within"].get<bool>());
    EXPECT_FALSE(rows["ops"].empty());
  }
}

TEST(Devices, ThatAreNotThereAreRefusedInOneLine) {
  const CommandFolder folder("devices_refused");
  const CommandResult run = folder.run("run --backend vulkan:99 -n 1 -p x");
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("--backend vulkan:99: "), std::string::npos) << run.err;
  const CommandResult odd = folder.run("run --backend vulkan:x -n 1 -p x");
  EXPECT_EQ(odd.code, 2);
  EXPECT_NE(odd.err.find("expected auto, cpu, cuda"), std::string::npos) << odd.err;
}

}  // namespace
}  // namespace sluice::test
