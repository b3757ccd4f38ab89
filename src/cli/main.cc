// sluice: runs what its command line says, turns exceptions into one line and an exit code.
#include <csignal>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace {

/// Messages quote what a file says: it must not get to steer the terminal.
void report(const char* message) { sluice::cli::note("sluice: {}\n", sluice::cli::terminal_safe(message)); }

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, reported where it happens
  sluice::cli::occupy_standard_streams();
  try {
    const int code = sluice::cli::run_command_line(argc, argv);
    sluice::cli::finish_output();
    return code;
  } catch (const sluice::UsageError& error) {
    report(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    report("out of memory");
    return 1;
  } catch (const std::exception& error) {
    report(error.what());
    return 1;
  }
}
