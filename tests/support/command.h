// The sluice binary as a user meets it: arguments in; exit code, output and messages out.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace sluice::test {

/// Whether a process can be asked what memory it and the machine have: a bare chroot has no /proc.
inline bool has_proc() { return std::filesystem::exists("/proc/self/status"); }

struct CommandResult {
  int code = -1;  ///< -1: ended by a signal
  std::string out, err;
};

/// A run with what it took.
struct MeasuredRun {
  int code = -1;           ///< -1: ended by a signal
  int64_t peak_bytes = 0;  ///< of physical memory
  double seconds = 0, processor_seconds = 0;
  std::string err;
};

/// A folder of its own, removed at the end, and runs of the binary with their output kept there.
class CommandFolder {
 public:
  explicit CommandFolder(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("sluice_" + name + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    // Peaks of memory take seconds to measure; a test that is about them measures all of it.
    ::setenv("SLUICE_PEAK_BYTES", "33554432", 1);
  }
  ~CommandFolder() {
    ::unsetenv("SLUICE_PEAK_BYTES");
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  CommandFolder(const CommandFolder&) = delete;
  CommandFolder& operator=(const CommandFolder&) = delete;

  std::string path(const std::string& name) const { return folder_ / name; }

  /// Runs sluice with these arguments, which a shell takes apart; `input` is a file or whatever a shell takes
  /// after <.
  CommandResult run(const std::string& arguments, const std::string& input = "/dev/null") const {
    const std::string command = std::string(SLUICE_BINARY " ") + arguments + " > " + path("out") + " 2> " +
                                path("err") + " <" + input;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(path("out")), read_file(path("err"))};
  }

  /// Runs sluice with these arguments as they are; its output is kept in the folder's out and err.
  MeasuredRun measure(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), SLUICE_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const auto begin = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    if (child == 0) {
      for (const auto& [fd, name] : {std::pair{STDOUT_FILENO, "out"}, {STDERR_FILENO, "err"}})
        ::dup2(::open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), fd);
      ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    int status = 0;
    struct rusage usage {};
    ::wait4(child, &status, 0, &usage);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, int64_t{usage.ru_maxrss} * 1024, took.count(),
            seconds(usage.ru_utime) + seconds(usage.ru_stime), read_file(path("err"))};
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace sluice::test
