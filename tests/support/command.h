// The sluice binary as a user meets it: arguments in; exit code, output and messages out.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace sluice::test {

struct CommandResult {
  int code = -1;  ///< -1: ended by a signal
  std::string out, err;
};

/// A folder of its own, removed at the end, and runs of the binary with their output kept there.
class CommandFolder {
 public:
  explicit CommandFolder(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("sluice_" + name + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~CommandFolder() {
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

 private:
  std::filesystem::path folder_;
};

}  // namespace sluice::test
