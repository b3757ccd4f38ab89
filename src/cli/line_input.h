// Lines from a user: typed at a terminal, with editing, history and completion, or piped in.
// Knows lines; what they mean is not its business.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sluice::cli {

class LineInput {
 public:
  enum class Status {
    Line,
    Interrupted,  ///< Ctrl-C: what was typed is dropped
    End,          ///< Ctrl-D on an empty line, or no more input
  };

  virtual ~LineInput() = default;
  /// Reads one line, without its newline; of a terminal, what is pasted is one line with newlines in it.
  /// `prompt` is shown to a person only.
  virtual Status read(const char* prompt, std::string& line) = 0;
  virtual bool is_terminal() const = 0;
};

/// Standard input as it is.
std::unique_ptr<LineInput> make_piped_input();

/// Standard input and output, which are a terminal. Lines are added to the history file at once, so that
/// they outlive any end; a file that cannot be read or written is left alone. Tab completes the beginning of
/// a line by `phrases`, a word at a time. SIGINT must be an InterruptFlag's.
std::unique_ptr<LineInput> make_terminal_input(const std::string& history_path,
                                               std::vector<std::string> phrases);

/// $XDG_STATE_HOME/sluice/history or ~/.local/state/sluice/history; empty when there is no home either.
std::string default_history_path();

}  // namespace sluice::cli
