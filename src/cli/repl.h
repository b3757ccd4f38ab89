// The conversation at a prompt: lines become messages or commands. One reply at a time; what went wrong is
// told in a line and the conversation goes on.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat_session.h"
#include "cli/line_input.h"

namespace sluice::cli {

struct ReplOptions {
  bool fold = false;
  bool verbose = false;
};

class Repl {
 public:
  Repl(ChatSession& session, LineInput& input, ReplOptions options)
      : session_(session), input_(input), options_(options) {}

  /// Reads until the end. Throws Error when standard output is lost, or when lines were piped in and some
  /// failed.
  void run();

  /// What Tab may complete.
  static std::vector<std::string> phrases();

 private:
  enum class Read { Message, Command, Nothing, End };
  struct Command {
    const char* name;
    const char* arguments;
    const char* help;
    void (Repl::*run)(std::string_view arguments);
  };
  static std::span<const Command> commands();

  Read read(std::string& text);
  bool read_quoted(std::string& text, size_t begin);
  void run_command(std::string_view line);
  void say(const std::string& text);
  void reply(const std::string* text);
  void tell(const std::string& problem);

  void help(std::string_view arguments);
  void set(std::string_view arguments);
  void show(std::string_view arguments);
  void clear(std::string_view arguments);
  void regenerate(std::string_view arguments);
  void read_file_as_message(std::string_view arguments);
  void save(std::string_view arguments);
  void load(std::string_view arguments);
  void bye(std::string_view arguments);

  void set_parameter(std::string_view arguments);
  std::string settings_text() const;
  std::string info_text() const;

  ChatSession& session_;
  LineInput& input_;
  ReplOptions options_;
  bool over_ = false;
  int interrupts_ = 0;  ///< in a row, at the prompt
  int problems_ = 0;
};

}  // namespace sluice::cli
