// The commands run, logits and profile as a user meets them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/golden.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

class Run : public testing::Test, public test::CommandFolder {
 protected:
  Run() : CommandFolder("run") {}

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
};

TEST_F(Run, WithoutArgumentsTellsATaleOnStandardOutputAlone) {
  const CommandResult result = run("run -n 20 -s 1");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, StartsWith("Once upon a time"));
  EXPECT_GT(result.out.size(), 40u);
  EXPECT_THAT(result.out, testing::Not(HasSubstr("tokens/s")));
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
  EXPECT_THAT(result.err, HasSubstr("seed 1"));
}

TEST_F(Run, GivesTheSameTextForTheSameSeedAndAnotherForAnother) {
  const std::string one = run("run -n 40 -s 7 -p 'The king'").out;
  EXPECT_EQ(one, run("run -n 40 -s 7 -p 'The king' -t 2").out);
  EXPECT_NE(one, run("run -n 40 -s 8 -p 'The king'").out);
}

TEST_F(Run, DraftsChangeNoText) {
  const std::string tale = "The fox said to the crow: come down, my dear, and sing to me. ";
  const std::string prompt = write("tale", tale + tale + tale);
  for (const char* sampling : {"--temp 0", "-s 3"}) {
    const CommandResult with = run(fmt::format("run -n 150 {} -f {}", sampling, prompt));
    const CommandResult without = run(fmt::format("run -n 150 {} -f {} --draft-max 0", sampling, prompt));
    EXPECT_EQ(with.out, without.out);
    EXPECT_THAT(without.err, testing::Not(HasSubstr("drafted")));
  }
  const CommandResult many = run("run --draft-max 8");
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.err, HasSubstr("--draft-max"));
}

TEST_F(Run, TheModelsOwnBlockDraftsAndChangesNoText) {
  test::write_small_model("glm-4.7-flash", "q8_0", path("block.gguf"), true);
  for (const char* how : {"--temp 0", "-s 3", "--temp 0 --backend ref"}) {
    const std::string command = fmt::format("run -m {} -p 'Once upon' -n 60 {}", path("block.gguf"), how);
    const CommandResult none = run(command + " --draft none");
    EXPECT_GT(none.out.size(), 30u);  // random words: they have ended at 37
    EXPECT_THAT(none.err, testing::Not(HasSubstr("drafted")));
    for (const char* by : {"mtp", "auto", "mtp --draft-max 1"})
      EXPECT_EQ(run(command + " --draft " + by).out, none.out) << how << ", " << by;
  }
  const std::string bundled = run("run -p 'Once upon' -n 60 --temp 0 --draft none").out;
  EXPECT_EQ(run("run -p 'Once upon' -n 60 --temp 0 --draft mtp").out, bundled);
  test::write_small_model("glm-4.7-flash", "q8_0", path("plain.gguf"));
  const CommandResult lacks = run(fmt::format("run -m {} -n 1 --draft mtp", path("plain.gguf")));
  EXPECT_EQ(lacks.code, 1);
  EXPECT_THAT(lacks.err, HasSubstr("--draft mtp: the file has no block of multi-token prediction"));
  EXPECT_THAT(run("run -n 1 --draft mtp --draft-max 0").err, HasSubstr("--draft mtp: there are no drafts"));
  const CommandResult many = run("run --draft 16");
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.err, HasSubstr("\"16\", expected auto, mtp, lookup or none (--draft-max N"));
}

TEST_F(Run, PrintsOnlyWhatItGenerated) {
  const CommandResult result = run("run -n 5 --temp 0 -p 'Once upon a time there was a'");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, testing::Not(HasSubstr("Once upon a time")));
}

// Where the reference's likeliest token leads by 0.2 and more: activations of eight bits move logits by 0.03
// (root mean square; generic, avx2 and avx512 alike).
TEST_F(Run, GreedyIsTheArgmaxOfTheReferenceBackendToo) {
  EXPECT_EQ(run("run -n 13 --temp 0 -p 'The wolf'").out,
            run("run -n 13 --temp 0 -p 'The wolf' --backend ref").out);
}

TEST_F(Run, TakesItsPromptFromFileOrStandardInputAlike) {
  const std::string prompt = write("prompt", "The fox said to the crow");
  const std::string by_flag = run("run -n 10 --temp 0 -p 'The fox said to the crow'").out;
  EXPECT_EQ(by_flag, run("run -n 10 --temp 0 -f " + prompt).out);
  EXPECT_EQ(by_flag, run("run -n 10 --temp 0", prompt).out);
  // With a prompt given, standard input is left alone.
  EXPECT_EQ(by_flag,
            run("run -n 10 --temp 0 -p 'The fox said to the crow'", write("other", "Another text")).out);
}

TEST_F(Run, EmptyOrClosedInputTakesTheOpening) {
  EXPECT_THAT(run("run -n 2 -s 1", write("empty", "")).out, StartsWith("Once upon a time"));
  const CommandResult closed = run("run -n 2 -s 1", "&-");
  EXPECT_EQ(closed.code, 0) << closed.err;
  EXPECT_THAT(closed.out, StartsWith("Once upon a time"));
}

TEST_F(Run, StopsBeforeAStopString) {
  const std::string whole = run("run -n 30 --temp 0 -p 'Once upon a time there was'").out;
  const size_t space = whole.find(' ', 8);
  ASSERT_NE(space, std::string::npos);
  const std::string stop = whole.substr(space + 1, 6);
  const std::string cut = run("run -n 30 --temp 0 -p 'Once upon a time there was' --stop '" + stop + "'").out;
  EXPECT_EQ(cut, whole.substr(0, whole.find(stop)) + "\n");
}

TEST_F(Run, KeepsWithinTheContext) {
  const CommandResult result = run("run -s 1 -c 64 -p 'The king'");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
  const CommandResult long_prompt = run("run -c 8 -p 'a b c d e f g h i j k l m n'");
  EXPECT_EQ(long_prompt.code, 1);
  EXPECT_THAT(long_prompt.err,
              MatchesRegex("sluice: the prompt has [0-9]+ tokens and leaves no room in a context of 8\n"));
}

TEST_F(Run, NamesWhatIsWrong) {
  const struct {
    const char* arguments;
    int code;
    const char* message;
  } cases[] = {
      {"run -m /nowhere.gguf", 1, "sluice: /nowhere.gguf: No such file or directory\n"},
      {"run -m user/repo:Q4_K_M", 1,
       "sluice: user/repo:Q4_K_M: No such file or directory; -hf user/repo:Q4_K_M names a model of the "
       "hub\n"},
      {"run -m models/none.gguf", 1, "sluice: models/none.gguf: No such file or directory\n"},
      {"run -f /dev/zero", 1, "sluice: /dev/zero: is longer than the 256 MiB that a text may have\n"},
      {"run -f /nowhere.txt", 1, "sluice: /nowhere.txt: No such file or directory\n"},
      {"run --temp -1", 1, "sluice: "},
      {"run -c 4096", 1, "sluice: -c 4096: the model was made for a context of 2048\n"},
      {"run --backend gpu", 2,
       "sluice: --backend gpu: expected auto, cpu, cuda, cuda:N, vulkan, vulkan:N or ref\n"},
      {"run --no-such-flag", 2, "sluice: "},
      {"run -n x", 2, "sluice: "},
      {"run -p a -f b", 2, "sluice: "},
      {"", 2, ""},
      {"nonsense", 2, "sluice: "},
  };
  for (const auto& c : cases) {
    const CommandResult result = run(c.arguments);
    EXPECT_EQ(result.code, c.code) << c.arguments;
    EXPECT_THAT(result.err, StartsWith(c.message)) << c.arguments;
    EXPECT_EQ(result.out, "") << c.arguments;
  }
}

TEST_F(Run, ReportsThatItsOutputIsLost) {
  const std::string command = SLUICE_BINARY " run -n 5 -s 1 > /dev/full 2> " + path("err") + " < /dev/null";
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_THAT(read_file(path("err")), HasSubstr("sluice: standard output: No space left on device"));
}

TEST_F(Run, LogitsAgreeWithTransformers) {
  const test::Golden golden = test::golden_case("lite-legacy-kv_b");
  const std::string tokens = test::source_path("tests/golden/lite-legacy-kv_b.json");
  for (const std::string backend : {"ref", "cpu"}) {
    const CommandResult result = run(fmt::format("logits -m {} --tokens {} -o {} --batch 7 --backend {}",
                                                 golden.model, tokens, path("logits"), backend));
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<float> logits = test::read_floats(path("logits"));
    ASSERT_EQ(logits.size(), golden.logits.size());
    if (backend == "ref") {
      EXPECT_LT(test::relative_error(logits, golden.logits), 1e-3);
    }
    EXPECT_LT(test::divergence(golden, logits).best_90, 0.0003);  // tests/golden/README.md
  }
}

TEST_F(Run, LogitsNamesBadTokens) {
  const struct {
    const char* json;
    const char* message;
  } cases[] = {{"{", "not JSON"},
               {"[1]", "expected an object with an array \"tokens\""},
               {"{\"tokens\": 3}", "expected an object with an array \"tokens\""},
               {"{\"tokens\": []}", "\"tokens\" is empty"},
               {"{\"tokens\": [1, 4096]}", "tokens[1] is no id from 0 to 4095"},
               {"{\"tokens\": [1.5]}", "tokens[0] is no id"},
               {"{\"tokens\": [18446744073709551615]}", "tokens[0] is no id"},
               {"{\"tokens\": [-1]}", "tokens[0] is no id"}};
  for (const auto& c : cases) {
    const CommandResult result = run("logits --tokens " + write("t.json", c.json) + " -o " + path("o"));
    EXPECT_EQ(result.code, 1) << c.json;
    EXPECT_THAT(result.err, HasSubstr(c.message)) << c.json;
  }
}

TEST_F(Run, ProfileListsEveryKindOfOpAsJson) {
  const CommandResult result = run("profile -n 3 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  int calls = 0;
  const auto file = nlohmann::json::parse(result.out);
  for (const auto& row : file["reports"][0]["rows"]) {
    calls += row["calls"].get<int>();
    EXPECT_GT(row["us"].get<double>(), 0) << row["op"];
  }
  // A backend runs some ops by their parts.
  const auto bound = nlohmann::json::parse(
      run("inspect --bound --json " + test::source_path("models/fairy-tales.gguf")).out);
  EXPECT_EQ(calls, static_cast<int>(bound["ops"].size()));
}

}  // namespace
}  // namespace sluice::cli
