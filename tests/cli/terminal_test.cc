// sluice chat at a terminal: editing, history, Ctrl-C and Ctrl-D, through a pseudo-terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>

#include "cli/hub_model.h"
#include "cli/progress.h"
#include "cli/reply_printer.h"
#include "support/command.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kUp = "\x1b[A";
constexpr const char* kNextPrompt = "\n\x1b[?2004h>>> ";

/// Whether this machine gives pseudo-terminals: a bare chroot has no /dev/pts.
bool has_terminals() {
  int ends[2];
  if (::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0) return false;
  ::close(ends[0]);
  ::close(ends[1]);
  return true;
}

constexpr const char* kNoTerminals = "no pseudo-terminals here: /dev/pts is not mounted";

/// A process at a terminal of its own, and all that it has printed.
class Terminal {
 public:
  explicit Terminal(const std::function<void()>& child, uint16_t columns = 200) {
    const winsize size{40, columns, 0, 0};
    std::fflush(nullptr);  // what the child has, too, it would print
    process_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (process_ == 0) {
      child();
      ::_exit(99);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
    ::close(terminal_);
  }

  /// Reads until `text` has come after what was waited for before. False after a minute, or at the end.
  bool wait_for(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) {
      if (const size_t at = seen_.find(text, waited_); at != std::string::npos) {
        waited_ = at + text.size();
        return true;
      }
      if (!read_more()) return false;
    }
    return false;
  }
  /// Reads until `text` is the last that has come; false after a minute, or at the end.
  bool ends_in(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!seen_.ends_with(text) && std::chrono::steady_clock::now() < end) {
      if (!read_more()) return false;
    }
    return seen_.ends_with(text);
  }
  void type(const std::string& keys) {
    EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  /// Reads to the end. The exit code; -1 after a signal or a minute.
  int finish() {
    wait_for("\xFF no output has this");
    int status = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::waitpid(process_, &status, WNOHANG) != process_) {
      if (std::chrono::steady_clock::now() > end) return -1;
      ::usleep(10'000);
    }
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void resize(uint16_t columns) {
    const winsize size{40, columns, 0, 0};
    ::ioctl(terminal_, TIOCSWINSZ, &size);
  }
  /// Stops the process as Ctrl-Z does, and leaves the terminal in a shell's mode. The mode that it had.
  termios stop() {
    ::kill(process_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(process_, &status, WUNTRACED), process_);
    termios before{};
    ::tcgetattr(terminal_, &before);
    termios lines = before;
    lines.c_lflag |= ICANON | ECHO;
    ::tcsetattr(terminal_, TCSANOW, &lines);
    return before;
  }
  void go_on() { ::kill(process_, SIGCONT); }
  const std::string& seen() const { return seen_; }

 private:
  bool read_more() {
    pollfd ready{terminal_, POLLIN, 0};
    if (::poll(&ready, 1, 1000) == 0) return true;
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got <= 0) return false;  // EIO: the other end is closed
    seen_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  int terminal_ = -1;
  pid_t process_ = -1;
  std::string seen_;
  size_t waited_ = 0;
};

/// Ctrl-D at the last prompt. Before the prompt is there it would be lost: that is the terminal's line mode.
void leave(Terminal& terminal) {
  EXPECT_TRUE(terminal.ends_in(">>> ")) << terminal.seen();
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

class TerminalChat : public testing::Test, public test::CommandFolder {
 protected:
  TerminalChat() : CommandFolder("terminal") {}
  void SetUp() override {
    if (!has_terminals()) GTEST_SKIP() << kNoTerminals;
  }

  std::string history() const { return path("state/sluice/history"); }

  /// What a child process does: become sluice chat.
  std::function<void()> chat(const std::vector<std::string>& flags = {"-n", "8"}) const {
    return [this, flags] {
      ::setenv("XDG_STATE_HOME", path("state").c_str(), 1);
      ::setenv("HOME", path("").c_str(), 1);
      ::setenv("TERM", "xterm", 1);
      ::unsetenv("NO_COLOR");
      std::vector<std::string> words = {SLUICE_BINARY, "chat", "--temp", "0"};
      words.insert(words.end(), flags.begin(), flags.end());
      std::vector<char*> arguments;
      arguments.reserve(words.size() + 1);
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      ::execv(SLUICE_BINARY, arguments.data());
    };
  }
};

TEST_F(TerminalChat, ABarIsShownWhileWeightsArePacked) {
  ASSERT_EQ(run("synth youtu-llm-2b --layers 1 " + path("m.gguf")).code, 0);
  Terminal terminal(chat({"-m", path("m.gguf"), "-c", "64", "-n", "1"}));
  EXPECT_TRUE(terminal.wait_for("\rloading weights  [")) << terminal.seen();
  EXPECT_TRUE(terminal.wait_for("\r\x1b[K")) << terminal.seen();  // and then it is gone
  leave(terminal);
}

TEST_F(TerminalChat, KeepsAHistoryAndCtrlDLeaves) {
  {
    Terminal terminal(chat());
    ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
    terminal.type("Tell me of the s\u00e9ance.\r");
    ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
    leave(terminal);
  }
  EXPECT_EQ(read_file(history()), "Tell me of the s\u00e9ance.\n");
  EXPECT_EQ(std::filesystem::status(history()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(kUp);
  ASSERT_TRUE(terminal.wait_for("Tell me of the s\u00e9ance.")) << terminal.seen();
  terminal.type("\r");  // again
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("/show info\r");
  ASSERT_TRUE(terminal.wait_for("messages           2")) << terminal.seen();
  leave(terminal);
  EXPECT_EQ(read_file(history()), "Tell me of the s\u00e9ance.\n/show info\n") << "the same line only once";
}

TEST_F(TerminalChat, CtrlCStopsTheReply) {
  // The reference backend is slow enough to be interrupted.
  Terminal terminal(chat({"--backend", "ref"}));
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type("Tell me a long tale.\r");
  ASSERT_TRUE(terminal.wait_for("tale.\r\n")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(" ")) << terminal.seen();  // a first word of the answer
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("/show info\r");
  ASSERT_TRUE(terminal.wait_for("messages           2")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/set parameter num_predict 2\r");
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("Go on.\r");
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("/show info\r");
  ASSERT_TRUE(terminal.wait_for("messages           4")) << terminal.seen();
  terminal.type("/bye\r");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST_F(TerminalChat, CtrlCAtThePromptDropsTheLine) {
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/nonsense");
  ASSERT_TRUE(terminal.wait_for("nonsense"));
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("\"\"\"one\r");
  ASSERT_TRUE(terminal.wait_for("... ")) << terminal.seen();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for("Ctrl-D or /bye leaves.")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type("/show info\r");
  ASSERT_TRUE(terminal.wait_for("messages           0")) << terminal.seen();
  leave(terminal);
  EXPECT_THAT(terminal.seen(), Not(HasSubstr("no command")));
}

TEST_F(TerminalChat, TabCompletesCommands) {
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/sh\ti\t\r");
  ASSERT_TRUE(terminal.wait_for("architecture")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/set t\tmaybe\r");
  ASSERT_TRUE(terminal.wait_for("/set think: expected on or off")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/s\t");
  ASSERT_TRUE(terminal.wait_for("/save   /set   /show")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> /s")) << terminal.seen();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(">>> "));
  leave(terminal);
}

TEST_F(TerminalChat, CtrlCLeavesALineOfSeveralRowsWhole) {
  Terminal terminal(chat(), 40);
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type(std::string(100, 'x') + "end");
  ASSERT_TRUE(terminal.wait_for("end")) << terminal.seen();
  terminal.type("\x01");
  ASSERT_TRUE(terminal.wait_for("\x1b[2A")) << terminal.seen();  // to the first of three rows
  const size_t before = terminal.seen().size();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  const std::string after = terminal.seen().substr(before);
  EXPECT_EQ(std::ranges::count(after, '\n'), 3) << after;  // the next prompt stands below all of them
  leave(terminal);
}

TEST_F(TerminalChat, ALineIsThereAgainAfterCtrlZ) {
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/show nfo");
  ASSERT_TRUE(terminal.wait_for("nfo")) << terminal.seen();
  for (int i = 0; i < 3; ++i) {
    const termios lines = terminal.stop();
    ASSERT_EQ(lines.c_lflag & ICANON, 0u);
    terminal.go_on();  // in the shell's mode
    ASSERT_TRUE(terminal.wait_for("\x1b[?2004h\r\x1b[J>>> /show nfo")) << i << terminal.seen();
  }
  terminal.type("\x1b[D\x1b[D\x1b[Di\r");  // keys are keys
  ASSERT_TRUE(terminal.wait_for("messages           0")) << terminal.seen();
  leave(terminal);
}

TEST_F(TerminalChat, ALineFollowsTheTerminalsWidth) {
  Terminal terminal(chat(), 40);
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("a line of twenty-six signs");
  ASSERT_TRUE(terminal.wait_for("signs")) << terminal.seen();
  terminal.resize(60);
  ASSERT_TRUE(terminal.wait_for(">>> a line of twenty-six signs")) << terminal.seen();
  terminal.type(" and as many once more");  // beyond 40 columns
  ASSERT_TRUE(terminal.wait_for(" and as many once more")) << terminal.seen();
  terminal.resize(30);
  ASSERT_TRUE(terminal.wait_for(">>> a line of twenty-six signs")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(" and as many once more")) << terminal.seen();
  terminal.type(kCtrlC);
  leave(terminal);
}

/// As a terminal sends what is pasted.
std::string pasted(const std::string& text) { return "\x1b[200~" + text + "\x1b[201~"; }

TEST_F(TerminalChat, SeveralPastedLinesAreOneMessage) {
  {
    Terminal terminal(chat());
    ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
    terminal.type("Look: " + pasted("def f(x):\r\treturn x + 1\rWhat does \u00e9\x07 do?\r"));
    ASSERT_TRUE(terminal.wait_for("do?")) << terminal.seen();
    terminal.type(" Tell\r");  // the paste alone sends nothing, and can be gone on with
    ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
    terminal.type("/show info\r");
    ASSERT_TRUE(terminal.wait_for("messages           2")) << terminal.seen();
    leave(terminal);
  }
  EXPECT_EQ(read_file(history()),
            "Look: def f(x):\x01\treturn x + 1\x01What does \u00e9 do? Tell\n/show info\n");
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(std::string(kUp) + kUp + "\r");
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("/save " + path("saved.json") + "\r");
  ASSERT_TRUE(terminal.wait_for("saved.json")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  leave(terminal);
  EXPECT_THAT(read_file(path("saved.json")), HasSubstr(R"("Look: def f(x):\n\treturn x + 1\nWhat does )"
                                                       "\u00e9 do? Tell\""));
}

TEST_F(TerminalChat, PastedLinesAreNoCommandsAndCanBeDropped) {
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(pasted("/usr/bin/ld: cannot find it\rWhy?") + "\r");
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type(pasted("/bye\r/bye"));
  ASSERT_TRUE(terminal.wait_for("/bye")) << terminal.seen();
  terminal.type(kCtrlC);
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(pasted("\r\r") + pasted("/show info") + "\r");  // one line, pasted or not
  ASSERT_TRUE(terminal.wait_for("messages           2")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type(pasted("\"\"\"quoted\r\rlines\"\"\"") + "\r");
  ASSERT_TRUE(terminal.wait_for(kNextPrompt)) << terminal.seen();
  terminal.type("/show info\r");
  ASSERT_TRUE(terminal.wait_for("messages           4")) << terminal.seen();
  leave(terminal);
  EXPECT_THAT(terminal.seen(), Not(HasSubstr("no command")));
}

TEST_F(TerminalChat, ALongPromptShowsHowFarItIsRead) {
  std::string tale;
  for (int i = 0; i < 120; ++i) tale += "Once upon a time there lived a king who had many sons. ";
  std::ofstream(path("tale")) << tale;
  Terminal terminal(chat({"-n", "1", "--backend", "ref"}));
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  terminal.type("/read " + path("tale") + "\r");
  ASSERT_TRUE(terminal.wait_for("\rreading the prompt  [")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(" tokens")) << terminal.seen();
  terminal.type(kCtrlC);  // it is gone, too, when nobody wants to wait
  ASSERT_TRUE(terminal.wait_for("\r\x1b[K")) << terminal.seen();
  ASSERT_TRUE(terminal.wait_for(">>> ")) << terminal.seen();
  leave(terminal);
}

TEST_F(TerminalChat, AHistoryThatCannotBeWrittenIsLeftAlone) {
  std::ofstream(path("state")) << "a file where the folder should be";
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.wait_for(">>> "));
  terminal.type("/show system\r");
  ASSERT_TRUE(terminal.wait_for("no system message")) << terminal.seen();
  leave(terminal);
  EXPECT_THAT(terminal.seen(), Not(HasSubstr("sluice:")));
}

/// What a terminal gets of an answer with thinking.
std::string printed(bool fold, const char* terminal_type) {
  Terminal terminal([&] {
    ::setenv("TERM", terminal_type, 1);
    ::unsetenv("NO_COLOR");
    using Kind = text::OutputEvent::Kind;
    ReplyPrinter printer({.fold = fold});
    printer.show({Kind::Reasoning, "Let me"}, 2);
    printer.show({Kind::Reasoning, " see.\x1b]0;evil\x07"}, 5);
    printer.show({Kind::Content, "A fox\x1b[2J\xC2\x9Bm."}, 6);
    printer.finish();
    ::_exit(0);
  });
  EXPECT_EQ(terminal.finish(), 0);
  return terminal.seen();
}

TEST(ProgressLine, StaysWithinOneLineOfTheTerminal) {
  if (!has_terminals()) GTEST_SKIP() << kNoTerminals;
  const std::string whole = "lädt  [#####     ]  50 %  5 of 10";
  const std::vector<std::pair<uint16_t, size_t>> cases = {
      {0, whole.size()}, {80, whole.size()}, {21, 20}, {3, 1}};  // no half of a character
  for (const auto& [columns, room] : cases) {
    Terminal terminal(
        [] {
          ProgressLine line;
          line.show([] { return bar_text("lädt", 5, 10, "5 of 10"); });
          std::fflush(nullptr);
          ::_exit(0);
        },
        columns);
    EXPECT_EQ(terminal.finish(), 0);
    EXPECT_EQ(terminal.seen(), "\r" + whole.substr(0, room) + "\x1b[K");
  }
}

// "4.20 GB of 18.30 GB  85.00 MB/s, 12:51 left" has room in the 80 columns that a terminal has.
TEST(ProgressLine, OfAPullStaysWithinOneLineToo) {
  if (!has_terminals()) GTEST_SKIP() << kNoTerminals;
  const hub::Progress progress{"user/model:Q4_K_M", 4'200'000'000, 18'300'000'000};
  EXPECT_LT(fetching_text(progress, 85e6).size(), 80u);
  EXPECT_LT(fetching_text(progress, 999e3).size(), 80u);
  for (const uint16_t columns : {80, 40}) {
    Terminal terminal(
        [&] {
          hub_listener().progress(progress);
          std::fflush(nullptr);
          ::_exit(0);
        },
        columns);
    EXPECT_EQ(terminal.finish(), 0);
    EXPECT_EQ(terminal.seen(), "\r" + fetching_text(progress, 0).substr(0, columns - 1u) + "\x1b[K\r\x1b[K");
  }
}

TEST(ReplyPrinter, DimsOrFoldsThinkingAndDefusesControlCharacters) {
  if (!has_terminals()) GTEST_SKIP() << kNoTerminals;
  EXPECT_EQ(printed(false, "xterm"),
            "\x1b[2mLet me\x1b[0m\x1b[2m see.\uFFFD]0;evil\uFFFD\x1b[0m\r\n\r\nA fox\uFFFD[2J\uFFFDm.");
  EXPECT_EQ(
      printed(true, "xterm"),
      "\x1b[2mthinking ...\x1b[0m\r\x1b[K\x1b[2mthought for 6 tokens\x1b[0m\r\n\r\nA fox\uFFFD[2J\uFFFDm.");
  EXPECT_EQ(printed(true, "dumb"), "thinking ...\r\nthought for 6 tokens\r\n\r\nA fox\uFFFD[2J\uFFFDm.");
}

}  // namespace
}  // namespace sluice::cli
