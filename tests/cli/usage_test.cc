// Command lines that make no sense, and files that cannot be written: one line that names what is wrong, at
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/command.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;

class Usage : public testing::Test, public test::CommandFolder {
 protected:
  Usage() : CommandFolder("usage") {}
};

TEST_F(Usage, OneLineNamesWhatIsWrong) {
  const struct {
    const char* arguments;
    const char* told;
  } kCases[] = {
      {"sevre", "sevre: no such command; did you mean serve?; --help"},
      {"quux", "quux: no such command; --help"},
      {"--bogus", "--bogus: no such flag; --help"},
      {"run --promt x", "--promt: no such flag; did you mean --prompt?; --help"},
      {"run --bogus=5", "--bogus: no such flag; --help"},
      {"inspect --sideways file", "--sideways: no such flag; --help"},
      {"run llama3.2 Hi",
       "llama3.2: one argument too many of run; -m FILE or -hf USER/REPO names a model, -p TEXT a"},
      {"serve a.gguf",
       "a.gguf: one argument too many of serve; -m FILE or -hf USER/REPO names a model; --help"},
      {"load x", "x: one argument too many of load; -m FILE or -hf USER/REPO names a model; --help"},
      {"list extra", "extra: one argument too many of list; --help"},
      {"pull", "pull: MODEL is required; --help"},
      {"draftbench x", "draftbench: AFTER is required; --help"},
      {"profile diff", "diff: BEFORE is required; --help"},
      {"cache", "cache: expected list or clear; --help"},
      {"cache bogus x", "cache bogus: expected list or clear; --help"},
      {"run --temp warm", "--temp warm: expected a number; --help"},
      {"serve --port 99999", "--port: Value 99999 not in range 0 to 65535; --help"},
      {"serve --max-itl nan", "--max-itl: Value nan not in range 0 to 1000000; --help"},
      {"serve --drain nan", "--drain: Value nan not in range 0 to 86400; --help"},
      {"serve --idle-unload x", "--idle-unload: Value x not in range 0 to 1000000000; --help"},
      {"opbench --seconds nan", "--seconds: Value nan not in range 0.001 to 60; --help"},
      {"run -m ''", "--model: the name is empty; --help"},
      {"bench -m ''", "--model: the name is empty; --help"},
      {"serve --max-memory 4X", "--max-memory 4X: expected a size of memory, as 10GiB, 12GB or 800M"},
      {"serve --max-memory 4k", "--max-memory 4k: expected 1048576 bytes at least"},
      {"serve --max-body much", "--max-body much: expected a size of memory"},
      {"serve --cache-ram abc", "--cache-ram abc: expected a size of memory"},
      {"run --gpu-memory abc", "--gpu-memory abc: expected a size of memory"},
      {"serve --cors chat.example", "chat.example: expected an origin, as https://chat.example, or *"},
      {"serve --cors https://chat.example/", "expected an origin"},
      {"serve --tls-cert x", "--tls-cert requires --tls-key; --help"},
      {"opbench --rotate 3X", "--rotate 3X: expected an amount"},
  };
  for (const auto& one : kCases) {
    const test::CommandResult result = run(one.arguments);
    EXPECT_EQ(result.code, 2) << one.arguments;
    EXPECT_EQ(result.out, "") << one.arguments;
    EXPECT_THAT(result.err, testing::StartsWith("sluice: ")) << one.arguments;
    EXPECT_THAT(result.err, HasSubstr(one.told)) << one.arguments;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << one.arguments << ": " << result.err;
  }
}

TEST_F(Usage, AFileThatCannotBeWrittenIsToldBeforeTheWork) {
  for (const char* command : {"profile --json ", "profile --html ", "profile --trace ", "verify -o ",
                              "devices --backend cpu --report "}) {
    for (const std::string& file : {path("none/x"), path(""), path(std::string(300, 'x'))}) {
      const test::CommandResult result = run(command + file);
      EXPECT_EQ(result.code, 1) << command << file;
      EXPECT_EQ(result.out, "") << command;
      EXPECT_THAT(result.err, testing::StartsWith("sluice: " + file + ": ")) << command;
      EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << command << ": " << result.err;
    }
  }
}

TEST_F(Usage, NothingIsClearedWhereNoCacheIs) {
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT(run("cache clear " + path("none")).err, HasSubstr("none: is no folder"));
  EXPECT_EQ(run("cache clear " + path("none")).code, 1);
  EXPECT_EQ(run("cache clear " + path("empty")).code, 0);
  EXPECT_THAT(run("cache clear " + path("empty")).err, HasSubstr("nothing was cached"));
}

}  // namespace
}  // namespace sluice::cli
