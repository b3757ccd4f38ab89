// The commands inspect and synth as a user meets them: exit codes, one-line errors, output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "gguf/writer.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Commands : public testing::Test, public test::CommandFolder {
 protected:
  Commands() : CommandFolder("inspect") {}

  /// A small file with a value that tries to steer the terminal, and one that is no UTF-8.
  std::string write_small() const {
    gguf::WritePlan plan;
    const auto add = [&plan](const char* key, gguf::WriteValue value) {
      plan.metadata.push_back({key, value});
    };
    add("general.architecture", std::string("deepseek2"));
    add("evil", std::string("\x1b]0;owned\x07"));
    add("broken", std::string("\xff\xfe"));
    add("epsilon", 1e-5f);
    add("short", std::vector<int32_t>{1, -2, 3});
    add("long", std::vector<uint32_t>(100, 7));
    plan.tensors = {{"a.weight", quant::Type::Q8_0, {64, 2}}, {"b.weight", quant::Type::F32, {8}}};
    gguf::Writer writer(path("small.gguf"), plan);
    for (const auto& tensor : plan.tensors) {
      writer.write(std::vector<std::byte>(static_cast<size_t>(tensor.bytes())));
    }
    writer.finish();
    return path("small.gguf");
  }
};

TEST_F(Commands, InspectCountsTheOpsThatTheDocumentsName) {
  const std::string page = read_file(SLUICE_SOURCE_DIR "/docs/token.md");
  const auto ops = [this](const std::string& flag) {
    const std::string out = run("inspect " + flag + " " SLUICE_SOURCE_DIR "/models/fairy-tales.gguf").out;
    const size_t end = out.find(" ops, one token"), begin = out.rfind(' ', end - 1) + 1;
    return out.substr(begin, end - begin);
  };
  EXPECT_THAT(page, HasSubstr("that is " + ops("--program") + " ops (`sluice inspect --program"));
  EXPECT_THAT(page, HasSubstr("by expansions: " + ops("--bound") + " ops (`sluice inspect --bound`)"));
}

TEST_F(Commands, InspectShowsAProgramCutIntoPlaces) {
  const std::string model = SLUICE_SOURCE_DIR "/models/fairy-tales.gguf";
  const test::CommandResult even = run("inspect --program --places 2 " + model);
  EXPECT_EQ(even.code, 0) << even.err;
  EXPECT_THAT(even.out, HasSubstr("copy in=embedding[rows, 1, "));
  EXPECT_THAT(even.out, HasSubstr("0.norm_mla_heads@1 "));
  EXPECT_THAT(even.out, HasSubstr("all_gather in=product[outputs, 1, "));
  EXPECT_EQ(run("inspect --program --places 1:1 " + model).out, even.out);
  const auto json = nlohmann::json::parse(run("inspect --program --places 2 --json " + model).out);
  EXPECT_EQ(json["ops"][1]["op"], "copy");
  EXPECT_EQ(json["ops"][1]["operands"][1]["place"], 1);
  EXPECT_EQ(run("inspect --program --places 1 " + model).out.find("all_reduce"), std::string::npos);
  for (const char* wrong : {"x", "0", "65", "2.5", "1:", "1:x", "-1:2", "0:0", "nan:1"}) {
    const test::CommandResult result = run(std::string("inspect --program --places=") + wrong + " " + model);
    EXPECT_NE(result.code, 0) << wrong;
    EXPECT_THAT(result.err, HasSubstr("places")) << wrong;
  }
  EXPECT_NE(run("inspect --places 2 " + model).code, 0) << "of a program";
}

TEST_F(Commands, InspectShowsMetadataAndTotals) {
  const test::CommandResult result = run("inspect " + write_small());
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("architecture  deepseek2\n"));
  EXPECT_THAT(result.out, HasSubstr("metadata: 6 keys\n"));
  EXPECT_THAT(result.out, HasSubstr("f32     1e-05\n"));
  EXPECT_THAT(result.out, HasSubstr("array   3 x i32: 1, -2, 3\n"));
  EXPECT_THAT(result.out, HasSubstr("array   100 x u32: 7, 7, 7, 7, 7, ...\n"));
  EXPECT_THAT(result.out, HasSubstr("tensors: 2\n"));
  EXPECT_THAT(result.out, HasSubstr(R"(\x1b]0;owned\x07)"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out, Not(HasSubstr("a.weight")));
}

TEST_F(Commands, InspectListsTensorsWhenAsked) {
  const test::CommandResult result = run("inspect --tensors -m " + write_small());
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("a.weight  Q8_0    [64, 2]"));
  EXPECT_THAT(result.out, HasSubstr("b.weight  F32     [8]"));
}

TEST_F(Commands, InspectPrintsJson) {
  const test::CommandResult result = run("inspect --json " + write_small());
  EXPECT_EQ(result.code, 0);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["metadata"]["general.architecture"], "deepseek2");
  EXPECT_EQ(json["metadata"]["evil"], "\x1b]0;owned\x07");
  EXPECT_EQ(json["metadata"]["broken"], "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(json["metadata"]["epsilon"], 1e-5);
  EXPECT_EQ(json["metadata"]["short"], (nlohmann::json{1, -2, 3}));
  EXPECT_EQ(json["metadata"]["long"], (nlohmann::json{{"type", "u32"}, {"count", 100}}));
  ASSERT_EQ(json["tensors"].size(), 2u);
  EXPECT_EQ(json["tensors"][0]["name"], "a.weight");
  EXPECT_EQ(json["tensors"][0]["shape"], (nlohmann::json{64, 2}));
  EXPECT_EQ(json["tensors"][0]["bytes"], 136);
  EXPECT_EQ(json["types"]["Q8_0"]["tensors"], 1);
}

TEST_F(Commands, InspectNamesWhatIsWrong) {
  const std::string small = write_small();
  const test::CommandResult missing = run("inspect " + path("none.gguf"));
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.out, "");
  EXPECT_EQ(missing.err, "sluice: " + path("none.gguf") + ": No such file or directory\n");

  std::filesystem::resize_file(small, std::filesystem::file_size(small) - 100);
  const test::CommandResult cut = run("inspect " + small);
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.err, StartsWith("sluice: " + small + ": the file is cut off: 2 of 2 tensors"));

  EXPECT_EQ(run("inspect /dev/null").code, 1);
  EXPECT_EQ(run("inspect").code, 2);
  EXPECT_EQ(run("inspect --nonsense " + small).code, 2);
}

TEST_F(Commands, InspectNoticesThatItsOutputIsLost) {
  const std::string small = write_small();
  EXPECT_EQ(
      WEXITSTATUS(std::system((SLUICE_BINARY " inspect " + small + " > /dev/full 2> " + path("e")).c_str())),
      1);
  EXPECT_EQ(read_file(path("e")), "sluice: standard output: No space left on device\n");
}

TEST_F(Commands, SynthWritesAFileThatInspectReads) {
  const std::string out = path("youtu.gguf");
  const test::CommandResult result = run("synth youtu-llm-2b " + out + " --layers 1 --mix q8_0 --seed 7");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // no terminal, no progress
  EXPECT_THAT(result.out, StartsWith(out + ": 15 tensors, "));
  EXPECT_THAT(result.out, EndsWith(" s\n"));
  const auto json = nlohmann::json::parse(run("inspect --json " + out).out);
  EXPECT_EQ(json["metadata"]["general.architecture"], "deepseek2");
  EXPECT_EQ(json["metadata"]["deepseek2.block_count"], 1);
  EXPECT_EQ(json["tensors"].size(), 15u);
}

TEST_F(Commands, SynthNamesWhatIsWrong) {
  const auto usage = [&](const std::string& arguments) {
    const test::CommandResult result = run("synth " + arguments);
    EXPECT_EQ(result.out, "");
    return result.code == 2 ? result.err : "exit code " + std::to_string(result.code);
  };
  EXPECT_THAT(usage("gpt-2 " + path("m")),
              HasSubstr("gpt-2 not in {glm-4.7-flash,deepseek-v2-lite,deepseek-v3,youtu-llm-2b,"));
  EXPECT_THAT(usage("youtu-llm-2b " + path("m") + " --mix q3"), HasSubstr("q3 not in {q4_0,"));
  EXPECT_EQ(usage("youtu-llm-2b " + path("m") + " --layers 33"),
            "sluice: --layers 33: youtu-llm-2b has 32\n");
  EXPECT_THAT(usage("youtu-llm-2b " + path("m") + " --layers 0"), HasSubstr("--layers"));
  EXPECT_THAT(usage("youtu-llm-2b"), HasSubstr("OUT"));
  EXPECT_FALSE(std::filesystem::exists(path("m")));
  EXPECT_FALSE(std::filesystem::exists(path("m.part")));
  const test::CommandResult full = run("synth youtu-llm-2b /dev/full --layers 1");
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "sluice: /dev/full: No space left on device\n");
  EXPECT_EQ(run("synth youtu-llm-2b /nowhere/m.gguf --layers 1").err,
            "sluice: /nowhere/m.gguf: No such file or directory\n");
}

}  // namespace
}  // namespace sluice::cli
