// Lines from a terminal by libedit. The history file is plain text, a line an entry, the last one last; a
// newline within an entry is kept as a byte that no text has.
//
// What is pasted comes in brackets (a mode that terminals have, "bracketed paste"): its lines become one
// entry, which can be edited before it is sent.
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/line_input.h"
#include "cli/word_wrap.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kHistoryEntries = 1000;
constexpr size_t kHistoryFileEntries = 10 * kHistoryEntries;
constexpr char kNewlineInHistory = '\x01';
constexpr const char* kBracketsOn = "\x1b[?2004h";
constexpr const char* kBracketsOff = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\x1b[200~";
constexpr std::string_view kPasteEnds = "\x1b[201~";
constexpr wchar_t kToTheEnd = L'\x05';  ///< the key that moves to the end of the line

/// Appends a line to a file that only this user can read; whatever fails is left at that.
void append_line(const std::string& path, std::string line) {
  if (path.empty()) return;
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  std::ranges::replace(line, '\n', kNewlineInHistory);
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  ::close(file);
}

/// The entries of a history file, and a file cut down when it has grown long.
std::vector<std::string> read_history(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    std::ranges::replace(line, kNewlineInHistory, '\n');
    if (!line.empty()) lines.push_back(line);
  }
  const bool long_file = lines.size() > kHistoryFileEntries;
  if (lines.size() > kHistoryEntries) lines.erase(lines.begin(), lines.end() - kHistoryEntries);
  if (long_file) {
    const std::string part = path + ".part";
    std::error_code ignored;
    fs::remove(part, ignored);
    for (const std::string& line : lines) append_line(part, line);
    fs::rename(part, path, ignored);
  }
  return lines;
}

class TerminalInput : public LineInput {
 public:
  TerminalInput(std::string history_path, std::vector<std::string> phrases);
  ~TerminalInput() override {
    el_end(edit_);
    history_end(history_);
  }
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  Status read(const char* prompt, std::string& line) override;
  bool is_terminal() const override { return true; }

 private:
  static TerminalInput& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<TerminalInput*>(self);
  }
  static char* prompt(EditLine* edit) { return of(edit).prompt_.data(); }
  static int read_character(EditLine* edit, wchar_t* out);
  void follow_terminal();
  static unsigned char complete(EditLine* edit, int key);
  static unsigned char paste(EditLine* edit, int key);
  void remember(const std::string& line);

  std::string history_path_, prompt_, last_;
  std::vector<std::string> phrases_;
  EditLine* edit_;
  History* history_;
  bool interrupted_ = false;
  const HeldSignals* held_ = nullptr;  // while a line is read
  bool brackets_ = terminal_has_sequences();
};

TerminalInput::TerminalInput(std::string history_path, std::vector<std::string> phrases)
    : history_path_(std::move(history_path)), phrases_(std::move(phrases)) {
  // libedit counts characters by the locale; without one that is UTF-8 it would split them.
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  edit_ = el_init("sluice", stdin, stdout, stderr);
  history_ = history_init();
  if (edit_ == nullptr || history_ == nullptr) fail("the terminal cannot be read by line");
  HistEvent event;
  history(history_, &event, H_SETSIZE, kHistoryEntries);
  history(history_, &event, H_SETUNIQUE, 1);
  for (const std::string& line : read_history(history_path_)) {
    history(history_, &event, H_ENTER, line.c_str());
    last_ = line;
  }
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(edit_, EL_PROMPT, prompt);
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_SIGNAL, 0);
  el_set(edit_, EL_HIST, history, history_);
  el_set(edit_, EL_GETCFN, read_character);
  // Of narrow names libedit makes copies that it never frees.
  el_wset(edit_, EL_ADDFN, L"sluice-complete", L"complete a command", complete);
  el_wset(edit_, EL_ADDFN, L"sluice-paste", L"take what is pasted as it is", paste);
  const char* const bindings[][2] = {{"\t", "sluice-complete"},    {kPasteBegins, "sluice-paste"},
                                     {"^R", "em-inc-search-prev"}, {"\\e[1~", "ed-move-to-beg"},
                                     {"\\e[4~", "ed-move-to-end"}, {"\\e[3~", "ed-delete-next-char"}};
  for (const auto& [keys, action] : bindings) el_set(edit_, EL_BIND, keys, action, nullptr);
  el_source(edit_, nullptr);  // ~/.editrc has the last word
}

// After Ctrl-Z the shell has the terminal in its own mode, and its lines stand where this one was; a terminal
// of another size shows it otherwise. It is drawn anew from the beginning of the cursor's row.
void TerminalInput::follow_terminal() {
  const bool continued = ContinueFlag::raised().exchange(false);
  if (!ResizeFlag::raised().exchange(false) && !continued) return;
  if (continued) {
    el_set(edit_, EL_PREP_TERM, 0);  // it takes its mode for the terminal's
    el_set(edit_, EL_PREP_TERM, 1);
    if (brackets_) std::fputs(kBracketsOn, stdout);
  }
  el_resize(edit_);
  std::fputs(brackets_ ? "\r\x1b[J" : "\r", stdout);
  el_wset(edit_, EL_REFRESH);
}

// One character; -1 also for Ctrl-C, which libedit by itself would miss.
int TerminalInput::read_character(EditLine* edit, wchar_t* out) {
  TerminalInput& self = of(edit);
  std::mbstate_t state{};
  while (true) {
    if (InterruptFlag::raised()) {
      if (std::exchange(self.interrupted_, true)) return -1;
      *out = kToTheEnd;  // what comes next is to stand below the line's last row
      return 1;
    }
    self.follow_terminal();
    if (!self.held_->wait_for_input(STDIN_FILENO)) continue;
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got == 0) return 0;
    if (got < 0) return -1;
    const size_t length = std::mbrtowc(out, &byte, 1, &state);
    if (length == static_cast<size_t>(-1)) state = {};  // no character: left out
    if (length == 0 || length == 1) return 1;
  }
}

unsigned char TerminalInput::complete(EditLine* edit, int) {
  const LineInfo* line = el_line(edit);
  const std::string_view typed(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  std::vector<std::string> fits;  // up to the end of the next word
  for (const std::string& phrase : of(edit).phrases_) {
    if (!std::string_view(phrase).starts_with(typed) || phrase.size() == typed.size()) continue;
    const size_t space = phrase.find(' ', typed.size());
    fits.push_back(phrase.substr(0, space == std::string::npos ? space : space + 1));
  }
  std::sort(fits.begin(), fits.end());
  fits.erase(std::unique(fits.begin(), fits.end()), fits.end());
  if (fits.empty() || typed.empty()) return CC_ERROR;
  const auto& first = fits.front();
  const auto& last = fits.back();
  const auto common =
      std::mismatch(first.begin(), first.end(), last.begin(), last.end()).first - first.begin();
  const std::string rest = first.substr(typed.size(), static_cast<size_t>(common) - typed.size());
  if (!rest.empty()) return el_insertstr(edit, rest.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  std::fputc('\n', stdout);
  for (const std::string& fit : fits) std::printf("%s  ", fit.c_str());
  std::fputc('\n', stdout);
  return CC_REDISPLAY;
}

// Up to the end of the brackets. A terminal sends carriage returns for newlines; other control characters
// than tabs would be shown as something that they are not, and are left out.
unsigned char TerminalInput::paste(EditLine* edit, int) {
  TerminalInput& self = of(edit);
  std::string pasted;
  while (!pasted.ends_with(kPasteEnds)) {
    if (InterruptFlag::raised()) {
      self.interrupted_ = true;
      return CC_EOF;
    }
    if (!self.held_->wait_for_input(STDIN_FILENO)) continue;
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got <= 0) return CC_EOF;
    pasted += byte;
  }
  pasted.erase(pasted.size() - kPasteEnds.size());
  std::string text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    const char byte = pasted[i];
    if (byte == '\r' && i + 1 < pasted.size() && pasted[i + 1] == '\n') continue;
    if (byte == '\r' || byte == '\n') {
      text += '\n';
    } else if (byte == '\t' || (static_cast<unsigned char>(byte) >= 0x20 && byte != '\x7F')) {
      text += byte;
    }
  }
  // What ends a copied line is no wish to send it.
  while (text.ends_with('\n')) text.pop_back();
  if (text.empty()) return CC_NORM;
  return el_insertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

void TerminalInput::remember(const std::string& line) {
  if (line.find_first_not_of(" \t") == std::string::npos || line == last_) return;
  last_ = line;
  HistEvent event;
  history(history_, &event, H_ENTER, line.c_str());
  append_line(history_path_, line);
}

LineInput::Status TerminalInput::read(const char* prompt, std::string& line) {
  prompt_ = prompt;
  interrupted_ = false;
  InterruptFlag::raised() = false;
  const ResizeFlag resized;
  const ContinueFlag continued;
  const HeldSignals held;
  held_ = &held;
  el_resize(edit_);
  // Before the prompt is there: a Ctrl-D typed in the line mode until then would be lost.
  el_set(edit_, EL_PREP_TERM, 1);
  if (brackets_) std::fputs(kBracketsOn, stdout);
  int count = 0;
  const char* typed = el_gets(edit_, &count);
  if (brackets_) std::fputs(kBracketsOff, stdout);
  std::fflush(stdout);
  if (typed == nullptr || count <= 0) {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    return interrupted_ ? Status::Interrupted : Status::End;
  }
  line.assign(typed, static_cast<size_t>(count));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  remember(line);
  return Status::Line;
}

}  // namespace

std::unique_ptr<LineInput> make_terminal_input(const std::string& history_path,
                                               std::vector<std::string> phrases) {
  return std::make_unique<TerminalInput>(history_path, std::move(phrases));
}

std::string default_history_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string state = variable("XDG_STATE_HOME"); state.starts_with('/')) {
    return state + "/sluice/history";
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.local/state/sluice/history";
}

}  // namespace sluice::cli
