// `sluice serve` as a process.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "support/command.h"

namespace sluice::test {

/// `sluice serve` with these flags, from when it is ready or has ended.
class Served {
 public:
  Served(const CommandFolder& folder, std::vector<std::string> flags,
         const std::string& program = SLUICE_BINARY)
      : log_(folder.path("log")) {
    flags.insert(flags.begin(), {program, "serve"});
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(log, STDOUT_FILENO), ::dup2(log, STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    ::close(log);
    wait_for("ready at ");
    wait_for("\n  ");  // the first line of what it serves
  }
  ~Served() {
    if (!ended()) ::kill(child_, SIGKILL), wait();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  std::string log() const { return read_file(log_); }
  int port() const {
    const std::string text = log();
    std::smatch found;
    return std::regex_search(text, found, std::regex("ready at http://[^:]+:([0-9]+)")) ? std::stoi(found[1])
                                                                                        : 0;
  }
  /// Waits, for a minute at most, until the log has this or the process has ended.
  void wait_for(const std::string& text) {
    for (int i = 0; i < 6000 && !ended() && log().find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  void signal(int which) const { ::kill(child_, which); }
  /// Its exit code; -1: a signal ended it.
  int wait() {
    if (!waited_) ::waitpid(child_, &status_, 0), waited_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  bool ended() {
    if (!waited_) waited_ = ::waitpid(child_, &status_, WNOHANG) == child_;
    return waited_;
  }

  std::string log_;
  pid_t child_ = -1;
  int status_ = 0;
  bool waited_ = false;
};

}  // namespace sluice::test
