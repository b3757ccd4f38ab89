// What a file, a vocabulary or a name says, shown by every command on a terminal: nothing in it steers the
// terminal. And what is no file at all as a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <fstream>

#include "cli/output.h"
#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;

/// A title for the window, colours in both ways to write them, an override of direction, and a step back.
const std::string kHostile = "\x1b]0;pwn\x07\x1b[31m\u009b5m\u202ebidi\u2066\x7f\x08";

/// All that a command writes to a terminal, and its exit code; -1: it did not end within a minute.
struct Shown {
  int code = -1;
  std::string text;
};

Shown at_terminal(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SLUICE_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Shown shown;
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(99);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  char bytes[4096];
  bool ended = false;
  while (!ended && std::chrono::steady_clock::now() < end) {
    pollfd ready{terminal, POLLIN, 0};
    if (::poll(&ready, 1, 200) <= 0) continue;
    const ssize_t got = ::read(terminal, bytes, sizeof bytes);
    ended = got <= 0;
    if (!ended) shown.text.append(bytes, static_cast<size_t>(got));
  }
  if (!ended) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  if (ended && WIFEXITED(status)) shown.code = WEXITSTATUS(status);
  return shown;
}

/// What steers the terminal in a text, other than what Sluice writes itself: line ends, the bar's line anew,
/// and dimmed text.
std::string steering(std::string text) {
  for (const std::string own : {"\r\n", "\r", "\x1b[K", "\x1b[2m", "\x1b[0m"})
    for (size_t at = text.find(own); at != std::string::npos; at = text.find(own, at))
      text.erase(at, own.size());
  std::string found;
  for (const std::string hostile : {"\x1b", "\x07", "\x08", "\x7f", "\u009b", "\u202e", "\u2066"})
    if (const size_t at = text.find(hostile); at != std::string::npos)
      found += "..." + text.substr(at < 40 ? 0 : at - 40, 80) + "...\n";
  return found;
}

class HostileWords : public testing::Test, public test::CommandFolder {
 protected:
  HostileWords() : CommandFolder("hostile_words"), model_(path("m" + kHostile + ".gguf")) {
    test::write_small_model("glm-4.7-flash", "q4_k_m", path("sound.gguf"));
    write(model_, [](test::GgufCopy&) {});
  }
  void SetUp() override {
    int ends[2];
    if (::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0)
      GTEST_SKIP() << "no pseudo-terminals here: /dev/pts is not mounted";
    ::close(ends[0]), ::close(ends[1]);
  }

  /// The small model with hostile words everywhere, and what `change` does besides.
  template <typename Change>
  std::string write(const std::string& to, const Change& change) const {
    test::GgufCopy copy(gguf::File::open(path("sound.gguf")));
    for (gguf::WriteEntry& entry : copy.plan.metadata) {
      if (entry.key == "general.name") entry.value = "model" + kHostile;
      if (entry.key == "tokenizer.ggml.tokens") tokens_ = &std::get<std::vector<std::string>>(entry.value);
      if (entry.key == "tokenizer.ggml.token_type") types_ = &std::get<std::vector<int32_t>>(entry.value);
    }
    for (size_t i = 0; i < tokens_->size(); ++i) {
      if ((*types_)[i] != 3 || i % 2 == 0) continue;  // control tokens become words that users define
      (*types_)[i] = 4;
      (*tokens_)[i] = std::to_string(i) + kHostile;
    }
    copy.plan.metadata.push_back({"general.description", "says " + kHostile});
    copy.plan.metadata.push_back({"general.tags" + kHostile, std::vector<std::string>{"a" + kHostile}});
    change(copy);
    copy.write(to);
    return to;
  }
  std::string write_with(const std::string& name, const std::string& key, const std::string& value) const {
    return write(path(name), [&](test::GgufCopy& copy) {
      auto& metadata = copy.plan.metadata;
      std::erase_if(metadata, [&](const auto& entry) { return entry.key == key; });
      metadata.push_back({key, value});
    });
  }

  std::string model_;

 private:
  mutable std::vector<std::string>* tokens_ = nullptr;
  mutable std::vector<int32_t>* types_ = nullptr;
};

TEST_F(HostileWords, SteerNoTerminalWhateverShowsThem) {
  std::ofstream(path("text")) << "Once upon a time there lived a man and his wife. " << kHostile << "\n";
  std::ofstream(path("tokens.json")) << R"({"tokens": [1, 2, 3]})";
  std::ofstream(path("bad.json")) << R"({"tokens": [")" << kHostile;
  const std::string model = model_, bad = kHostile;
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", model},
      {"inspect", "--program", model},
      {"inspect", "--json", model},
      {"tokenize", "-m", model, "-p", "Once" + bad},
      {"tokenize", "-m", model, "-p", "Once" + bad, "--json"},
      {"run", "-m", model, "-p", "Once" + bad, "-n", "200", "--temp", "1.5"},
      {"run", "-m", model, "--chat", "-p", "Hello", "-n", "100", "--temp", "1.5"},
      {"perplexity", "-m", model, "-f", path("text"), "-c", "16"},
      {"perplexity", "-m", model, "-f", path("text"), "-c", "16", "--json"},
      {"bench", "-m", model, "-p", "4", "-n", "2", "-r", "1"},
      {"bench", "-m", model, "-p", "4", "-n", "2", "-r", "1", "-o", "json"},
      {"profile", "-m", model, "-p", "4", "-n", "2"},
      {"compare", "-m", model, "--rows", "2", "--text", "Once"},
      {"logits", "-m", model, "--tokens", path("tokens.json"), "-o", path("logits" + bad)},
      {"pack", model, path("packed" + bad)},
      // What is refused, by what it says.
      {"run", "-m", write_with("architecture", "general.architecture", "x" + bad)},
      {"run", "-m", write_with("pre", "tokenizer.ggml.pre", "x" + bad)},
      {"run", "-m", write_with("scaling", "deepseek2.rope.scaling.type", "x" + bad)},
      {"run", "-m", write_with("unknown", "deepseek2." + bad, "x")},
      {"run", "-m", write_with("parse", "tokenizer.chat_template", "{{ " + bad), "--chat", "-p", "x"},
      {"run", "-m", write_with("raise", "tokenizer.chat_template", "{{ raise_exception('" + bad + "') }}"),
       "--chat", "-p", "x"},
      {"run", "-m", path("none" + bad)},
      {"serve", "-m", path("none" + bad), "--port", "0"},
      {"serve", "-m", model, "--port", "0", "--host", "h" + bad},
      {"serve", "-m", model, "--port", "0", "--api-key-file", path("k" + bad)},
      {"logits", "-m", model, "--tokens", path("bad.json"), "-o", path("l")},
      {"run", "-m", model, "-f", path("none" + bad)},
      {"run", "-m", model, "--temp", "x" + bad},
      {"compare", "-m", model, "--backend", "b" + bad},
      {"synth", "x" + bad, path("s")},
      {"run", "--" + bad},
      {bad},
  };
  for (const std::vector<std::string>& command : commands) {
    std::string line;
    for (const std::string& word : command) line += gguf::printable(word) + " ";
    const Shown shown = at_terminal(command);
    EXPECT_NE(shown.code, -1) << line;
    EXPECT_NE(shown.code, 99) << line;
    EXPECT_FALSE(shown.text.empty() && shown.code != 0) << line;
    EXPECT_EQ(steering(shown.text), "") << line;
  }
}

TEST_F(HostileWords, WhatIsNoFileIsRefusedAtOnceAndNotOpened) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path("socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::pair<std::string, std::string> kinds[] = {{path("pipe"), "a pipe"},
                                                       {path("socket"), "a socket"},
                                                       {path(""), "a directory"},
                                                       {"/dev/zero", "a device"},
                                                       {"/dev/null", "a device"}};
  for (const auto& [file, kind] : kinds) {
    for (const std::string command : {"run -n 1 -m ", "inspect ", "tokenize -p x -m ", "serve --port 0 -m ",
                                      "bench -m ", "perplexity -f /dev/null -m ", "profile -m "}) {
      const test::CommandResult result = run(command + file);
      EXPECT_EQ(result.code, 1) << command << file;
      EXPECT_THAT(result.err, HasSubstr(file + ": is " + kind + ", expected a regular file\n"))
          << command << file;
    }
  }
  ::close(socket);
}

TEST(TerminalSafe, ReplacesWhatSteersAndNothingElse) {
  EXPECT_EQ(terminal_safe("plain ä 世界 🙂\n\ttext"), "plain ä 世界 🙂\n\ttext");
  EXPECT_EQ(terminal_safe("\u05e9\u200f!\u200d"),
            "\u05e9\u200f!\u200d");  // marks and joiners that texts have
  EXPECT_EQ(terminal_safe("a\x1b[0m\r\b\x7f"), "a\uFFFD[0m\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(terminal_safe("\u0080\u009f\u00a0"), "\uFFFD\uFFFD\u00a0");
  for (const char* hostile : {"\u2028", "\u2029", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066",
                              "\u2067", "\u2068", "\u2069", "\ufeff", "\U000E0001", "\U000E007F"})
    EXPECT_EQ(terminal_safe(hostile), "\uFFFD");
  EXPECT_EQ(terminal_safe("\xff\x9b\xe2\x80"), "\uFFFD\uFFFD\uFFFD");  // no UTF-8, cut off
  EXPECT_EQ(terminal_safe(std::string_view("\0", 1)), "\uFFFD");
}

}  // namespace
}  // namespace sluice::cli
