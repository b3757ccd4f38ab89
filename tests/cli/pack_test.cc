// sluice pack: files that run as the model that they were made of, and damaged, foreign or hostile ones,
// which are refused in one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "support/command.h"
#include "support/golden.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Pack : public testing::Test, public test::CommandFolder {
 protected:
  Pack() : CommandFolder("pack") {}

  std::string small_pack() const {
    test::write_small_model("glm-4.7-flash", "q4_k_m", path("small.gguf"));
    const CommandResult result = run("pack " + path("small.gguf") + " " + path("small.pack"));
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(path("small.pack"));
  }
  std::string write(const std::string& bytes) const {
    std::ofstream(path("m.pack"), std::ios::binary | std::ios::trunc) << bytes;
    return path("m.pack");
  }
  /// The model runs, or is refused in one line; true when it ran.
  bool runs(const std::string& bytes) const {
    const test::MeasuredRun outcome =
        measure({"run", "-m", write(bytes), "-n", "1", "-p", "A", "--temp", "1"});
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.code << ": " << outcome.err;
    if (outcome.code == 1) {
      EXPECT_THAT(outcome.err, AllOf(StartsWith("sluice: "), EndsWith("\n")));
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    }
    return outcome.code == 0;
  }
};

TEST_F(Pack, RunsAsTheModelItself) {
  const std::string model = std::string(SLUICE_SOURCE_DIR) + "/models/fairy-tales.gguf",
                    out = path("tales.pack");
  const CommandResult packed = run("pack " + model + " " + out);
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_THAT(packed.out, StartsWith(out + ": "));
  EXPECT_FALSE(std::filesystem::exists(out + ".part"));
  const std::string arguments = "run -n 40 --temp 0 -p 'The queen was' -m ";
  const CommandResult expected = run(arguments + model), actual = run(arguments + out);
  EXPECT_EQ(actual.code, 0) << actual.err;
  EXPECT_GT(expected.out.size(), 60u);
  EXPECT_EQ(actual.out, expected.out);
  EXPECT_EQ(run(arguments + out + " -t 1").out, expected.out);  // whoever packed it
  EXPECT_EQ(run("chat -n 4 --temp 0 -m " + out, write("Hello\n")).code, 0);
}

TEST_F(Pack, IsMadeAgainOnlyOfAnotherFile) {
  small_pack();
  const std::string command = "pack " + path("small.gguf") + " " + path("small.pack");
  EXPECT_THAT(run(command).out, HasSubstr("is up to date"));
  std::filesystem::last_write_time(path("small.gguf"), std::filesystem::file_time_type::clock::now());
  EXPECT_THAT(run(command).out, HasSubstr(" in "));
  EXPECT_THAT(run(command).out, HasSubstr("is up to date"));
  write("no pack file");
  EXPECT_THAT(run("pack " + path("small.gguf") + " " + path("m.pack")).out, HasSubstr(" in "));
}

TEST_F(Pack, WhatCannotBePackedOrRunOtherwiseIsRefused) {
  small_pack();
  const std::string gguf = path("small.gguf"), pack = path("small.pack");
  const auto error = [&](const std::string& arguments, int code) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, code) << arguments;
    return result.err;
  };
  EXPECT_EQ(error("pack " + pack + " " + path("again"), 1), "sluice: " + pack + ": is packed already\n");
  EXPECT_EQ(error("pack " + gguf + " " + gguf, 1), "sluice: " + gguf + ": is the model itself\n");
  EXPECT_EQ(error("pack " + gguf + " /dev/null", 1), "sluice: /dev/null: not a regular file\n");
  EXPECT_THAT(error("pack " + gguf + " " + path("none/out"), 1), HasSubstr("No such file"));
  EXPECT_THAT(error("run -n 1 --backend ref -m " + pack, 2), HasSubstr("is packed for cpu"));
  EXPECT_EQ(error("run -n 1 --no-repack -m " + pack, 2),
            "sluice: --no-repack: the model is packed already\n");
  EXPECT_EQ(error("inspect " + pack, 1).find("terminate"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("again")));
}

TEST_F(Pack, DamagedAndForeignFilesAreRefusedInOneLine) {
  const std::string whole = small_pack();
  ASSERT_TRUE(runs(whole));
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    const size_t at = 8 + random() % 120;  // without its first word it is no file of ours
    SCOPED_TRACE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    EXPECT_FALSE(runs(damaged));
  }
  EXPECT_FALSE(runs(whole.substr(0, 100)));
  EXPECT_FALSE(runs(whole.substr(0, whole.size() - 1)));
  EXPECT_FALSE(runs(std::string("SLUICEPK") + std::string(200'000, 'x')));
}

}  // namespace
}  // namespace sluice::cli
