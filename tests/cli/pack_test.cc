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
  for (const std::string command : {"compare -m ", "opbench --seconds 0.001 -m ", "tune --dry-run -m "})
    EXPECT_THAT(error(command + pack, 1),
                HasSubstr(pack + ": is packed for the backend cpu; this needs the GGUF"));
  EXPECT_FALSE(std::filesystem::exists(path("again")));
}

TEST_F(Pack, CommandsReadItAsTheModel) {
  small_pack();
  std::ofstream(path("text")) << "In old times there lived a king.";
  std::ofstream(path("t.json")) << "{\"tokens\": [1, 2, 3]}";
  const std::string gguf = path("small.gguf"), pack = path("small.pack");
  for (const std::string command :
       {"tokenize -p 'old times' -m ", "detokenize 5 6 7 -m ", "inspect --memory -c 64 --json ",
        "inspect --program ", "forecast --bandwidth 50GB --flops 1T --json -m ",
        "run -n 4 --temp 0 -p Old -m "}) {
    const CommandResult expected = run(command + gguf), actual = run(command + pack);
    EXPECT_EQ(actual.code, 0) << command << actual.err;
    if (!command.starts_with("inspect --memory")) {
      EXPECT_EQ(actual.out, expected.out) << command;
    }
  }
  const auto nats = [&](const std::string& model) {
    const std::string out = run("perplexity --json -c 16 -f " + path("text") + " -m " + model).out;
    return out.substr(out.find("nats"), 40);
  };
  EXPECT_EQ(nats(pack), nats(gguf));
  for (const std::string& model : {gguf, pack})
    EXPECT_EQ(run("logits --tokens " + path("t.json") + " -o " + model + ".logits -m " + model).code, 0);
  EXPECT_EQ(read_file(pack + ".logits"), read_file(gguf + ".logits"));
  EXPECT_EQ(run("inspect --bound -m " + pack).code, 0);
  std::string expected = run("inspect --tensors " + gguf).out, actual = run("inspect --tensors " + pack).out;
  EXPECT_THAT(actual, HasSubstr("\npacked        by sluice pack"));
  // The same metadata and tensors.
  EXPECT_EQ(actual.substr(actual.find("\nmetadata")), expected.substr(expected.find("\nmetadata")));
  EXPECT_THAT(run("inspect --json " + pack).out, HasSubstr("\"packed\": true"));
}

TEST_F(Pack, ChangedBytesAreFoundByVerify) {
  const std::string whole = small_pack();
  const std::string verify = "pack --verify " + path("m.pack");
  write(whole);
  EXPECT_EQ(run(verify).out, path("m.pack") + ": is as it was packed\n");
  std::string damaged = whole;
  damaged[damaged.size() - 1000] ^= 1;  // a weight
  write(damaged);
  const CommandResult result = run(verify);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("sluice: " + path("m.pack") + ": is damaged (bytes "),
                                EndsWith("pack the model again\n")));
  EXPECT_THAT(run("pack " + path("small.gguf") + " " + path("m.pack")).out, HasSubstr(" in "))
      << "made again";
  EXPECT_EQ(run(verify).code, 0);
  EXPECT_EQ(read_file(path("m.pack")), whole);
  EXPECT_EQ(run("pack --verify " + path("small.gguf")).code, 1);
  EXPECT_EQ(run("pack " + path("small.gguf")).code, 2);
  EXPECT_EQ(run(verify + " " + path("out")).code, 2);
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
