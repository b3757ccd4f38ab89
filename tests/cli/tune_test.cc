// The file of tuned values, and sluice tune as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/assemble.h"
#include "cli/tuning_file.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

class TuningFile : public testing::Test, public test::CommandFolder {
 protected:
  TuningFile() : CommandFolder("tuning") {}
  void write(const std::string& text) { write_file(path("t.json"), std::as_bytes(std::span(text))); }
  /// What a run says on standard error with this file of tuned values.
  std::string complaint(const std::string& text) {
    write(text);
    const std::string command = "SLUICE_TUNING=" + path("t.json") +
                                " " SLUICE_BINARY " inspect --memory " SLUICE_SOURCE_DIR
                                "/models/fairy-tales.gguf > " +
                                path("out") + " 2> " + path("err");
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_file(path("err"));
  }
};

const std::vector<profile::Choice> kChoices = {
    {{"a.tile", 1, {1, 2}}, 3, {10.0, 8.0}, {0.1, 0.1}, 2},
    {{"a.ahead", 64, {64, 128}}, 1, {10.0, 9.9}, {0.1, 0.1}, 64},
};

TEST_F(TuningFile, KeepsWhatDiffersByDevice) {
  const std::string file = path("cache/sluice/tuning.json");
  write_tuning(file, "X, avx2, 2 threads, kernels 1", kChoices);
  write_tuning(file, "Y, avx2, 2 threads, kernels 1", {});
  EXPECT_EQ(read_tuning(file, "X, avx2, 2 threads, kernels 1"), (program::Tuning{{"a.tile", 2}}));
  EXPECT_THAT(read_tuning(file, "Y, avx2, 2 threads, kernels 1"), IsEmpty());
  EXPECT_THAT(read_tuning(file, "X, avx2, 3 threads, kernels 1"), IsEmpty());
  const json kept = json::parse(read_file(file));
  EXPECT_EQ(kept["devices"]["X, avx2, 2 threads, kernels 1"]["a.tile"]["builtin_us"], 10.0);
  // Newer kernels' values take the place of older ones'.
  write_tuning(file, "X, avx2, 2 threads, kernels 2", kChoices);
  EXPECT_EQ(json::parse(read_file(file))["devices"].size(), 2u);
  EXPECT_THROW(write_tuning(file + "/t.json", "X", kChoices), Error) << "a file is no folder";
}

TEST_F(TuningFile, DamageIsIgnoredWithOneWarning) {
  for (const char* text : {"", "{", "[]", "3", R"({"format":2,"devices":{}})", R"({"format":1,"devices":[]})",
                           R"({"devices":{}})", R"({"format":1,"devices":{"X":{"a":{"value":"b"}}}})"}) {
    write(text);
    EXPECT_THAT(read_tuning(path("t.json"), "X"), IsEmpty()) << text;
  }
  const std::string said = complaint("{");
  EXPECT_THAT(said, HasSubstr("t.json: not what `sluice tune` writes; built-in values are used"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(complaint(R"({"format":1,"devices":{"another machine, kernels 1":{}}})"), "");
  write(R"({"format":1,"devices":{"X, kernels 1":{"a":"b"}}})");
  EXPECT_THAT(read_tuning(path("t.json"), "X, kernels 1"), IsEmpty());
  EXPECT_THAT(read_tuning(path("none.json"), "X, kernels 1"), IsEmpty());
  EXPECT_THAT(read_tuning("", "X, kernels 1"), IsEmpty());
}

// In processes of their own: a process says it once.
TEST_F(TuningFile, OtherKernelsValuesAreStaleAndIgnoredWithOneWarning) {
  const std::string device = make_backend("cpu", 0)->device();
  const std::string same = device.substr(0, device.rfind(", kernels ")), stale = same + ", kernels 0";
  ASSERT_NE(stale, device);
  const auto file = [](const std::string& name, const char* entries) {
    return R"({"format":1,"devices":{")" + name + R"(":)" + entries + "}}";
  };
  const std::string said = complaint(file(stale, R"({"a.tile":{"value":2}})"));
  EXPECT_EQ(said, "sluice: " + path("t.json") + ": measured with other kernels than these (" + device +
                      "); built-in values are used, `sluice tune` measures anew\n");
  EXPECT_THAT(read_tuning(path("t.json"), device), IsEmpty());
  // This device's own entry, another device's, and a choice that these kernels do not have: nothing to say.
  EXPECT_EQ(complaint(file(device, "{}")), "");
  EXPECT_EQ(complaint(file("another " + stale, "{}")), "");
  EXPECT_EQ(complaint(file(device, R"({"no such choice":{"value":7}})")), "");
}

TEST_F(TuningFile, TuneSaysWhatIsOpen) {
  EXPECT_THAT(run("tune -t 1 --dry-run --seconds 0.001 --rotate 1MB").out,
              testing::AllOf(HasSubstr(" gain |"), HasSubstr("panels.ahead_bytes.")));
}

}  // namespace
}  // namespace sluice::cli
