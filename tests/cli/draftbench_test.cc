// sluice draftbench: what is written is the file, in turns without drafts and with them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::HasSubstr;

class DraftBench : public testing::Test, public test::CommandFolder {
 protected:
  DraftBench() : CommandFolder("draftbench") {}

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
};

TEST_F(DraftBench, WritesTheFileWithoutDraftsAndWithThem) {
  std::string before, after;
  for (int i = 0; i < 12; ++i) {
    before += fmt::format("In the {} house there lived a king who had {} sons.\n", i * 7, i + 2);
    after += fmt::format("In the {} house there lived a queen who had {} sons.\n", i * 7, i + 2);
  }
  const std::string files = write("before", before) + " " + write("after", after);
  const CommandResult result = run("draftbench -r 2 -n 200 --json " + files);
  ASSERT_EQ(result.code, 0) << result.err;
  const json list = json::parse(result.out);
  ASSERT_EQ(list.size(), 4u);
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["draft_max"], i % 2 == 0 ? 0 : 7);
    EXPECT_EQ(list[i]["tokens"], 200);
    EXPECT_GT(list[i]["tokens_per_second"], 0);
    EXPECT_GE(list[i]["draft_tokens"], list[i]["accepted_tokens"]);  // how many is the clock's business
    if (i % 2 == 0) {
      EXPECT_EQ(list[i]["draft_tokens"], 0);
    }
  }
  const CommandResult table = run("draftbench -n 40 --draft-max 3 " + files);
  EXPECT_THAT(table.out, HasSubstr("| drafts | tokens/s | drafted | right | tokens a step |"));
  EXPECT_THAT(table.out, HasSubstr("|      3 |"));
}

// A draft a step, of which a share is taken to be right, made up or by the bundled model's block.
TEST_F(DraftBench, SimulatesHowManyDraftsAreRight) {
  std::string text;
  for (int i = 0; i < 80; ++i) text += fmt::format("The king had {} sons and {} daughters. ", i, i + 2);
  const std::string files = write("before", "Once upon a time") + " " + write("after", text);
  for (const char* by : {"lookup", "mtp"}) {
    const CommandResult result = run(fmt::format(
        "draftbench -n 300 --draft-max 1 --accept 0.7 --every-step -t 1 --json --draft {} {}", by, files));
    ASSERT_EQ(result.code, 0) << result.err;
    const json with = json::parse(result.out)[1];
    EXPECT_EQ(with["tokens"], 300) << by;
    EXPECT_EQ(with["simulated_acceptance"], 0.7) << by;
    const double drafted = with["draft_tokens"], right = with["accepted_tokens"];
    EXPECT_GT(drafted, 140) << by << ": one a step";
    EXPECT_NEAR(right / drafted, 0.7, 0.12) << by;
    EXPECT_NEAR(drafted + right, 299, 2) << by << ": steps, and what they brought besides";
  }
  EXPECT_THAT(run("draftbench --accept 0.7 -n 20 " + files).out,
              HasSubstr("Simulated: the model writes what"));
}

TEST_F(DraftBench, SaysWhatIsWrong) {
  const std::string text = write("text", "A fox and a crow."), empty = write("empty", "");
  EXPECT_EQ(run("draftbench " + text).code, 2);
  const CommandResult none = run("draftbench " + text + " " + empty);
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("empty: no text"));
  EXPECT_THAT(run("draftbench " + text + " " + path("nowhere")).err, HasSubstr("nowhere"));
  EXPECT_THAT(run("draftbench --draft-max 0 " + text + " " + text).err, HasSubstr("no drafts"));
  EXPECT_THAT(run("draftbench --vocab " + path("nowhere") + " " + text + " " + text).err,
              HasSubstr("nowhere"));
  std::string longer;
  for (int i = 0; i < 2000; ++i) longer += "A fox. ";
  EXPECT_THAT(run("draftbench " + text + " " + write("longer", longer)).err,
              HasSubstr("the model was made for a context of"));
}

}  // namespace
}  // namespace sluice::cli
