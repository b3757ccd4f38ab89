// What every command does where its standard streams are closed, full or read by nobody, and what it leaves
// behind when a signal ends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "support/command.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;
using testing::StartsWith;

class Streams : public testing::Test, public test::CommandFolder {
 protected:
  Streams() : CommandFolder("streams") {
    ::setenv("HF_HUB_CACHE", path("hub").c_str(), 1);  // empty
    std::ofstream(path("text")) << "In old times when wishing still helped one, there lived a king.\n";
    std::ofstream(path("tokens.json")) << "{\"tokens\": [1, 2, 3]}";
    std::ofstream(path("parse.jsonl")) << "{\"text\": \"hello\"}\n";
    test::write_small_model("glm-4.7-flash", "q4_k_m", path("small.gguf"));
    const std::string text = path("text"), small = path("small.gguf");
    const std::string no_peaks = " --backend ref";  // the CPU's take seconds to measure
    commands_ = {{"run", "run -n 3 -s 1 -t 1"},
                 {"chat", "chat -n 3 -s 1 -t 1 <" + text},
                 {"inspect", "inspect " + small},
                 {"logits", "logits --tokens " + path("tokens.json") + " -o " + path("logits")},
                 {"compare", "compare -n 3 -t 1"},
                 {"perplexity", "perplexity --windows 1 -c 16 -t 1 -f " + text},
                 {"synth", "synth youtu-llm-2b --layers 1 /dev/null"},
                 {"pack", "pack " + small + " " + path("small.pack")},
                 {"bench", "bench -p 8 -n 2 -r 1 -t 1" + no_peaks},
                 {"load", "load -p 32 -n 2 --streams 1 -t 1"},
                 {"profile", "profile -n 2 -t 1" + no_peaks},
                 {"forecast", "forecast --bandwidth 50GB --flops 1T"},
                 {"opbench", "opbench rms_norm --seconds 0.001 --rotate 1MB -t 1 -m " + small + no_peaks},
                 {"draftbench", "draftbench -n 4 -t 1 " + text + " " + text},
                 {"tune", "tune --dry-run --seconds 0.001 --rotate 1MB -t 1"},
                 {"cache", "cache list " + path(".")},
                 {"list", "list --json"},
                 {"devices", "devices"},
                 {"verify", "verify -t 1 -o " + path("report.json")},
                 {"tokenize", "tokenize -p king"},
                 {"detokenize", "detokenize 5 6"},
                 {"debug", "debug parse-output <" + path("parse.jsonl")}};
  }
  void SetUp() override {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  }

  /// The exit code of sluice with these arguments and redirections; -1: ended by a signal.
  static int code_of(const std::string& arguments) {
    // A core dump of a failing run would take long.
    const int status = std::system(("ulimit -c 0; exec " SLUICE_BINARY " " + arguments).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::map<std::string, std::string> commands_;
};

/// The commands that --help lists.
std::set<std::string> listed(const std::string& help) {
  std::set<std::string> names;
  std::istringstream lines(help.substr(help.find("ubcommands:")));
  std::string line;
  std::getline(lines, line);
  const std::regex row("^  ([a-z]+) +\\S.*");
  for (std::smatch match; std::getline(lines, line);)
    if (std::regex_match(line, match, row)) names.insert(match[1]);
  return names;
}

TEST_F(Streams, TheTableHasEveryCommand) {
  std::set<std::string> names = listed(run("--help").out);
  EXPECT_EQ(names.erase("serve"), 1u);  // below
  for (const char* needs_a_hub : {"pull", "rm"}) EXPECT_EQ(names.erase(needs_a_hub), 1u);
  for (const auto& [name, arguments] : commands_) EXPECT_EQ(names.erase(name), 1u) << name;
  EXPECT_TRUE(names.empty()) << *names.begin() << " has no row";
}

TEST_F(Streams, NobodyNeedsToHearStandardError) {
  for (const auto& [name, arguments] : commands_) {
    const std::string quiet = arguments + " >/dev/null ";
    EXPECT_EQ(code_of(quiet + "2>/dev/full"), 0) << name;
    EXPECT_EQ(code_of(quiet + "2>&-"), 0) << name;
  }
  // Errors too are told to nobody, with the same code.
  for (const auto& [arguments, code] : {std::pair{"run -m /nowhere", 1}, {"run --nonsense", 2}, {"", 2}}) {
    EXPECT_EQ(code_of(std::string(arguments) + " 2>/dev/full"), code) << arguments;
    EXPECT_EQ(code_of(std::string(arguments) + " 2>&-"), code) << arguments;
  }
}

TEST_F(Streams, LostOutputIsAFailure) {
  commands_.erase("logits");  // prints nothing
  commands_["help"] = "--help";
  commands_["version"] = "--version";
  commands_["help of a command"] = "run --help";
  for (const auto& [name, arguments] : commands_) {
    for (const char* to : {" >/dev/full", " >&-"}) {
      if (name == "pack") std::filesystem::remove(path("small.pack"));
      EXPECT_EQ(code_of(arguments + to + " 2>" + path("err")), 1) << name << to;
      const char* why = to[2] == '/' ? "No space left on device" : "";
      EXPECT_THAT(read_file(path("err")), HasSubstr(std::string("sluice: standard output: ") + why))
          << name << to;
    }
  }
}

TEST_F(Streams, AFileThatIsWrittenIsNoStreamThatWasClosed) {
  // Opened as number 1 or 2 it would get what is printed.
  ASSERT_EQ(code_of("synth youtu-llm-2b --layers 1 " + path("a.gguf") + " >/dev/null 2>&1"), 0);
  EXPECT_EQ(code_of("synth youtu-llm-2b --layers 1 " + path("b.gguf") + " <&- >&- 2>&-"), 1);
  EXPECT_EQ(read_file(path("a.gguf")), read_file(path("b.gguf")));
}

TEST_F(Streams, ServeStopsAsEver) {
  for (const char* to : {"2>/dev/full", "2>&-", ">&- 2>&-"}) {
    // Nobody hears when it is ready; its socket is there once it waits for signals.
    const std::string socket = path("socket");
    const std::string command = "rm -f " + socket + "; " SLUICE_BINARY " serve --unix-socket " + socket +
                                " " + to + " & P=$!; until [ -S " + socket +
                                " ] || ! kill -0 $P; do sleep 0.1; done" + "; kill -TERM $P; wait $P";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << to << ": " << status;
  }
}

/// Sends a signal to sluice with these arguments as soon as a file is there. True: the signal ended it.
bool ends_by(int signal, std::vector<std::string> arguments, const std::string& file) {
  arguments.insert(arguments.begin(), SLUICE_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }
  int status = 0;
  while (!std::filesystem::exists(file) && ::waitpid(child, &status, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(child, signal);
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

TEST_F(Streams, ASignalLeavesNoHalfFile) {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += "Once upon a time there lived a king who had " + std::to_string(i) + " sons. ";
  std::ofstream(path("long")) << text;
  ASSERT_EQ(code_of("synth glm-4.7-flash --layers 2 " + path("two.gguf") + " >/dev/null"), 0);
  const struct {
    std::vector<std::string> arguments;
    std::string file;
  } cases[] = {
      {{"synth", "glm-4.7-flash", "--layers", "6", path("s.gguf")}, path("s.gguf.part")},
      {{"pack", path("two.gguf"), path("two.pack")}, path("two.pack.part")},
      {{"perplexity", "-f", path("long"), "--save-logits", path("saved")}, path("saved")},
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const auto& one : cases) {
      EXPECT_TRUE(ends_by(signal, one.arguments, one.file)) << one.arguments[0];
      EXPECT_FALSE(std::filesystem::exists(one.file)) << one.arguments[0];
    }
  }
}

TEST_F(Streams, MoreThreadsThanRunAtOnceAreTold) {
  const CommandResult result = run("bench -p 4 -n 0 -r 1 -t 1000 -o json");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, StartsWith("sluice: -t 1000: this process runs "));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("\"n_threads\": 1000")));
  for (const auto* command : {"run -n 1 -t 1000", "perplexity --windows 1 -c 16 -t 1000 -f ",
                              "tune --dry-run --seconds 0.001 --rotate 1MB -t 1000"}) {
    const std::string text = std::string(command).ends_with("-f ") ? path("text") : "";
    const CommandResult told = run(command + text);
    EXPECT_EQ(told.code, 0) << told.err;
    EXPECT_THAT(told.err, HasSubstr("sluice: -t 1000: ")) << command;
  }
  EXPECT_THAT(run("run -n 1 -t 1").err, testing::Not(HasSubstr("-t 1:")));
}

}  // namespace
}  // namespace sluice::cli
