// How weights get into memory, as a user says and sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/loading.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;
using testing::Not;

class LoadingTest : public testing::Test, public test::CommandFolder {
 protected:
  LoadingTest() : CommandFolder("loading") {}
};

TEST_F(LoadingTest, WithoutRepackingTheTextIsTheSame) {
  const std::string arguments = "run -n 40 --temp 0 -p 'The queen was'";
  const CommandResult packed = run(arguments), in_place = run(arguments + " --no-repack");
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_EQ(in_place.code, 0) << in_place.err;
  EXPECT_GT(packed.out.size(), 60u);
  EXPECT_EQ(in_place.out, packed.out);
}

TEST_F(LoadingTest, WithoutRepackingIsForTheBackendCpu) {
  const CommandResult result = run("run -n 1 --no-repack --backend ref");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "sluice: --no-repack: needs --backend cpu\n");
  EXPECT_EQ(run("run -n 1 --no-repack --backend auto").code, 0);
}

TEST_F(LoadingTest, EveryCommandThatRunsAModelKnowsTheFlag) {
  for (const char* command : {"run", "chat", "serve", "bench", "profile", "load"})
    EXPECT_THAT(run(std::string(command) + " --help").out, HasSubstr("--no-repack")) << command;
}

TEST_F(LoadingTest, TheBarSaysHowFarPackingIs) {
  EXPECT_EQ(loading_bar_text(0, 17'200'000'000), "loading weights  [          ]   0 %  0 B of 17.20 GB");
  EXPECT_EQ(loading_bar_text(8'600'000'000, 17'200'000'000),
            "loading weights  [#####     ]  50 %  8.60 GB of 17.20 GB");
}

TEST_F(LoadingTest, ThereIsNoBarWhereStandardErrorIsNoTerminal) {
  ASSERT_EQ(run("synth youtu-llm-2b --layers 1 " + path("m.gguf")).code, 0);
  const CommandResult result = run("run -n 1 -c 64 -m " + path("m.gguf"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("packing")));
}

}  // namespace
}  // namespace sluice::cli
