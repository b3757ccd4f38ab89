// One model over several processes, as a user starts them: by mpirun, and by RANK and WORLD_SIZE; and what
// the others do when one of them is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "support/command.h"
#include "support/connection.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::Connection;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Seconds within which every rank is to have heard that one is gone; a busy machine's tests take longer.
constexpr double kHeard = 5;
constexpr int kMinute = 60;

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// How a model is dealt out.
constexpr const char *kParts = "--tensor-parallel", *kLayers = "--pipeline-parallel";

/// A rank as a process.
class Rank {
 public:
  Rank(std::string log, int rank, int ranks, int port, std::vector<std::string> arguments,
       const char* deal = kParts)
      : log_(std::move(log)) {
    arguments.insert(arguments.begin(), SLUICE_BINARY);
    arguments.insert(arguments.end(), {deal, std::to_string(ranks), "-t", "1"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    for (const std::string& file : {log_, log_ + ".out"}) write_file(file, {});
    child_ = ::fork();
    if (child_ != 0) return;
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    ::dup2(::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::dup2(::open((log_ + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }
  ~Rank() {
    if (!ended()) kill(SIGKILL), kill(SIGCONT), (void)wait(kMinute);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::string log() const { return read_file(log_); }
  std::string out() const { return read_file(log_ + ".out"); }
  pid_t process() const { return child_; }
  void kill(int signal) const { ::kill(child_, signal); }
  bool ended() {
    if (!ended_) ended_ = ::waitpid(child_, &status_, WNOHANG) == child_;
    return ended_;
  }
  /// Its exit code within so many seconds; -1: a signal ended it, -2: it has not ended.
  int wait(double seconds) {
    const auto until = steady_clock::now() + duration<double>(seconds);
    while (!ended() && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(10));
    if (!ended_) return -2;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }
  bool wait_for(const std::string& text) {
    for (int i = 0; i < 100 * kMinute && !ended(); ++i) {
      if (log().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return log().find(text) != std::string::npos;
  }

 private:
  std::string log_;
  pid_t child_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

using RankList = std::vector<std::unique_ptr<Rank>>;

class RanksCommand : public testing::Test, public test::CommandFolder {
 protected:
  RanksCommand() : CommandFolder("ranks") {}

  RankList start(int ranks, const std::vector<std::string>& arguments, const char* deal = kParts) const {
    const int port = free_port();
    RankList list;
    for (int rank = 0; rank < ranks; ++rank)
      list.push_back(
          std::make_unique<Rank>(path("log" + std::to_string(rank)), rank, ranks, port, arguments, deal));
    return list;
  }
  /// A server of so many ranks that answers.
  RankList serve(int ranks, const char* deal = kParts, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"serve", "--backend", "cpu", "--port", "0", "-c", "2048"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    RankList list = start(ranks, arguments, deal);
    EXPECT_TRUE(list[0]->wait_for("tokens in the cache")) << list[0]->log();
    return list;
  }
  static int port_of(const Rank& rank) {
    const std::string text = rank.log(), before = "ready at http://127.0.0.1:";
    const size_t at = text.find(before);
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + before.size()));
  }
  static bool has_mpirun() { return std::system("mpirun --version > /dev/null 2>&1") == 0; }
  /// What a program under mpirun prints.
  std::string by_mpirun(int ranks, const std::string& arguments, const std::string& deal = kParts) const {
    const std::string command = "timeout 120 mpirun --oversubscribe --allow-run-as-root -n " +
                                std::to_string(ranks) + " " + SLUICE_BINARY " " + arguments + " " + deal +
                                " " + std::to_string(ranks) + " > " + path("out") + " 2> " + path("err") +
                                " < /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(path("err"));
    return read_file(path("out"));
  }
};

const std::vector<std::string> kTale = {
    "run", "-p", "The king said to the fox", "-n", "40", "--temp", "0", "--backend", "ref"};
constexpr const char* kTaleText = "run -p 'The king said to the fox' -n 40 --temp 0";

// The reference adds up in float32: cut or not, its text is the same.
TEST_F(RanksCommand, TellTheSameTaleAsOneProcess) {
  const test::CommandResult alone = run(std::string(kTaleText) + " --backend ref");
  ASSERT_EQ(alone.code, 0) << alone.err;
  ASSERT_GT(alone.out.size(), 60u);
  for (const int ranks : {2, 3}) {
    const RankList list = start(ranks, kTale);
    for (const auto& rank : list) EXPECT_EQ(rank->wait(kMinute), 0) << rank->log();
    EXPECT_EQ(list[0]->out(), alone.out) << ranks;
    EXPECT_THAT(list[0]->log(), HasSubstr("[ " + std::to_string(ranks) + " ranks by TCP ]"));
    EXPECT_EQ(list[1]->out(), "") << "rank 0 alone prints";
  }
}

TEST_F(RanksCommand, AreStartedByMpirun) {
  if (!has_mpirun()) GTEST_SKIP() << "skipped: ranks by MPI: there is no mpirun";
  const std::string alone = run(std::string(kTaleText) + " --backend ref").out;
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(by_mpirun(ranks, std::string(kTaleText) + " --backend ref"), alone);
    EXPECT_THAT(read_file(path("err")), HasSubstr(std::to_string(ranks) + " ranks by MPI ]"));
  }
  // Sums have one order, whatever carries them.
  const std::string by_mpi = by_mpirun(2, std::string(kTaleText) + " --backend cpu");
  EXPECT_EQ(by_mpirun(2, std::string(kTaleText) + " --backend cpu --transport tcp"), by_mpi);
  EXPECT_THAT(read_file(path("err")), HasSubstr("2 ranks by TCP ]"));
}

// Of layers that are dealt out no sum is cut: the CPU's bits are those of one process, too.
TEST_F(RanksCommand, WithLayersOfTheirOwnGiveTheBitsOfOneProcess) {
  const std::string tale = std::string(kTaleText) + " --backend cpu -t 1";
  const std::string alone = run(tale).out;
  ASSERT_GT(alone.size(), 60u);
  std::string tokens = R"({"tokens": [1)";
  for (int i = 1; i < 700; ++i) tokens += ", " + std::to_string(1 + i * 37 % 4000);
  tokens += "]}";
  write_file(path("tokens.json"), std::as_bytes(std::span(tokens)));
  const std::string logits = "logits --tokens " + path("tokens.json") + " --backend cpu -t 1 -o ";
  ASSERT_EQ(run(logits + path("alone.bin")).code, 0);
  for (const int ranks : {2, 3}) {
    const RankList list =
        start(ranks, {"run", "-p", "The king said to the fox", "-n", "40", "--temp", "0", "--backend", "cpu"},
              kLayers);
    for (const auto& rank : list) EXPECT_EQ(rank->wait(kMinute), 0) << rank->log();
    EXPECT_EQ(list[0]->out(), alone) << ranks;
    const RankList again =
        start(ranks, {"logits", "--tokens", path("tokens.json"), "--backend", "cpu", "-o", path("dealt.bin")},
              kLayers);
    for (const auto& rank : again) EXPECT_EQ(rank->wait(kMinute), 0) << rank->log();
    EXPECT_EQ(read_file(path("dealt.bin")), read_file(path("alone.bin"))) << ranks;
  }
  if (!has_mpirun()) GTEST_SKIP() << "skipped: layers over ranks by MPI: there is no mpirun";
  for (const int ranks : {2, 3}) EXPECT_EQ(by_mpirun(ranks, tale, kLayers), alone);
  EXPECT_THAT(read_file(path("err")), HasSubstr("3 ranks by MPI ]"));
}

TEST_F(RanksCommand, SayWhatIsWrongWithHowTheyWereStarted) {
  const auto expect = [&](const std::string& variables, const std::string& flags, const std::string& why) {
    const std::string command = variables + " " + SLUICE_BINARY " run -n 1 " + flags + " > /dev/null 2> " +
                                path("err") + " < /dev/null";
    EXPECT_NE(std::system(command.c_str()), 0);
    EXPECT_THAT(read_file(path("err")), HasSubstr(why));
  };
  expect("", "--tensor-parallel 2",
         "--tensor-parallel 2: this process was started alone; expected 2 of them");
  expect("RANK=0 WORLD_SIZE=3", "--tensor-parallel 2",
         "--tensor-parallel 2: RANK and WORLD_SIZE says that there are 3 processes");
  expect("RANK=0 WORLD_SIZE=2", "--tensor-parallel 2 --gpu-memory 1G",
         "--gpu-memory: not with --tensor-parallel, which cuts every expert");
  expect("", "--pipeline-parallel 2", "--pipeline-parallel 2: this process was started alone");
  expect("RANK=0 WORLD_SIZE=4", "--tensor-parallel 2 --pipeline-parallel 2",
         "--tensor-parallel, --pipeline-parallel: expected one of them");
  expect("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1", "--tensor-parallel 2",
         "MASTER_ADDR: expected rank 0's address, since the ranks are on several hosts");
  expect("RANK=1 WORLD_SIZE=2 MASTER_ADDR=no.such.host.invalid", "--tensor-parallel 2",
         "no.such.host.invalid: ");
}

TEST_F(RanksCommand, WithAnotherFileAreRefused) {
  test::write_small_model("deepseek-v2-lite", "q8_0", path("other.gguf"));
  const int port = free_port();
  Rank first(path("log0"), 0, 2, port, {"run", "-n", "1"});
  Rank other(path("log1"), 1, 2, port, {"run", "-n", "1", "-m", path("other.gguf")});
  EXPECT_EQ(first.wait(kMinute), 1);
  EXPECT_EQ(other.wait(kMinute), 1);
  EXPECT_THAT(first.log(), HasSubstr("has another model file than rank 0"));
  EXPECT_THAT(other.log(), HasSubstr("has another model file than rank 0"));
}

TEST_F(RanksCommand, WithOtherFlagsAreRefused) {
  const int port = free_port();
  Rank first(path("log0"), 0, 2, port, {"run", "-n", "1"});
  Rank other(path("log1"), 1, 2, port, {"run", "-n", "1", "--cache-type", "q8_0"});
  EXPECT_EQ(first.wait(kMinute), 1);
  EXPECT_EQ(other.wait(kMinute), 1);
  EXPECT_THAT(other.log(), AnyOf(HasSubstr("flags have to be the same at every rank"),
                                 HasSubstr("has other kernels than rank 0")));
  EXPECT_THAT(first.log(), HasSubstr("rank 1 ("));
}

TEST_F(RanksCommand, SayWhomTheyWaitFor) {
  const int port = free_port();
  Rank late(path("log1"), 1, 2, port, {"run", "-n", "1"});
  EXPECT_TRUE(late.wait_for("waiting for rank 0 at 127.0.0.1:" + std::to_string(port)));
  Rank first(path("log0"), 0, 2, port, {"run", "-n", "1"});
  EXPECT_EQ(first.wait(kMinute), 0) << first.log();
  EXPECT_EQ(late.wait(kMinute), 0) << late.log();
}

// Pages are all ranks' together; those of another deal are none of theirs.
TEST_F(RanksCommand, FindPromptsOnDiskThatTheySawBefore) {
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += "Once upon a time there was a king. ";
  const std::string body = R"({"prompt": ")" + prompt + R"(", "max_tokens": 8, "temperature": 0})";
  const auto ask = [&](const char* deal, const char* cached) {
    const RankList list = serve(2, deal, {"--cache-disk", path("pages") + ":1GiB"});
    std::string text;
    {
      Connection answer(port_of(*list[0]));
      answer.send("POST", "/v1/completions", body);
      text = answer.read();
    }
    EXPECT_THAT(text, HasSubstr(cached)) << deal;
    list[0]->kill(SIGTERM);
    for (const auto& rank : list) EXPECT_EQ(rank->wait(kMinute), 0) << rank->log();
    const size_t said = text.find("\"text\"");
    return said == std::string::npos ? text : text.substr(said, text.find("\"}", said) - said);
  };
  for (const char* deal : {kParts, kLayers}) {
    const std::string first = ask(deal, "\"cached_tokens\":0");
    EXPECT_EQ(ask(deal, "\"cached_tokens\":576"), first) << deal;
  }
}

TEST_F(RanksCommand, EndARequestWithAnErrorWhenOneIsKilled) {
  for (const auto& [deal, victim] : {std::pair(kParts, 1), {kParts, 2}, {kLayers, 1}, {kLayers, 2}}) {
    const RankList list = serve(3, deal);
    ASSERT_GT(port_of(*list[0]), 0) << list[0]->log();
    Connection answer(port_of(*list[0]));
    answer.send("POST", "/v1/completions",
                R"({"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": 1900})");
    ASSERT_THAT(answer.read("data: "), StartsWith("HTTP/1.1 200 "));
    const std::string name = "rank " + std::to_string(victim) + " (";
    const auto begin = steady_clock::now();
    list[static_cast<size_t>(victim)]->kill(SIGKILL);
    const std::string text = answer.read();
    EXPECT_LT(duration<double>(steady_clock::now() - begin).count(), kHeard);
    EXPECT_THAT(text, HasSubstr("error"));
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_EQ(list[static_cast<size_t>(3 - victim)]->wait(kHeard), 1);
    EXPECT_THAT(list[static_cast<size_t>(3 - victim)]->log(), HasSubstr(name));
    EXPECT_EQ(list[0]->wait(kHeard), 1);
    EXPECT_THAT(list[0]->log(), HasSubstr("the engine has failed: " + name));
  }
}

TEST_F(RanksCommand, EndWhenOneIsGoneThoughNobodyAsks) {
  const RankList list = serve(2);
  list[1]->kill(SIGKILL);
  EXPECT_EQ(list[0]->wait(kHeard), 1);
  EXPECT_THAT(list[0]->log(), HasSubstr("rank 1 ("));
  const RankList again = serve(2);
  again[0]->kill(SIGKILL);
  EXPECT_EQ(again[1]->wait(kHeard), 1);
  EXPECT_THAT(again[1]->log(), HasSubstr("sluice: rank 0 ("));
  EXPECT_THAT(again[1]->log(), HasSubstr(") has ended"));
}

TEST_F(RanksCommand, EndWhenOneGivesNoSign) {
  const RankList list = serve(2);
  list[1]->kill(SIGSTOP);
  EXPECT_EQ(list[0]->wait(2 * kHeard), 1);
  EXPECT_THAT(list[0]->log(), HasSubstr("gave no sign for 4 s"));
  list[1]->kill(SIGCONT);
  EXPECT_EQ(list[1]->wait(kHeard), 1) << list[1]->log();
}

// Whenever it happens: while they meet, load, compute or wait.
TEST_F(RanksCommand, NeverHangWhicheverIsKilledWhenever) {
  std::mt19937 random(60);
  for (int round = 0; round < 24; ++round) {
    const RankList list =
        start(3, {"run", "--backend", "cpu", "-n", "400", "--temp", "0"}, round % 2 == 0 ? kParts : kLayers);
    const auto victim = static_cast<size_t>(random() % 3);
    std::this_thread::sleep_for(milliseconds(random() % 1500));
    if (list[0]->ended()) continue;  // it was quick
    list[victim]->kill(SIGKILL);
    // Where they had not met yet the others wait for it, as for a rank that starts late, and say so.
    const auto waits = [&] {
      return std::ranges::any_of(
          list, [](const auto& rank) { return rank->log().find("waiting for") != std::string::npos; });
    };
    for (size_t rank = 0; rank < list.size(); ++rank) {
      const auto until = steady_clock::now() + duration<double>(2 * kHeard);
      while (rank != victim && !waits() && list[rank]->wait(0.1) == -2)
        ASSERT_LT(steady_clock::now(), until) << "rank " << rank << " hangs in round " << round;
    }
  }
}

}  // namespace
}  // namespace sluice::cli
