// Reads one tool call at a time from a growing text, from behind its opening tag to its closing tag, and says
// as soon as it is certain that there is one, then its arguments as they are written. Knows how calls are
// written; what becomes of text that is none is its user's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "text/output_format.h"
#include "text/text_window.h"
#include "text/tool_types.h"

namespace sluice::text {

class CallReader {
 public:
  enum class Status : uint8_t {
    More,
    Failed,  ///< this is no call; never after opened()
    Broken,  ///< a call, but its arguments cannot go on as they do at end()
    Done,
  };
  /// Which calls count.
  struct Rules {
    bool only_declared;    ///< those of a declared tool alone
    bool opens;            ///< what can only be a call is one before its end
    bool goes_on = false;  ///< behind another call: in the list that it stood in, if it was in one
  };

  /// The reader of a format; null when it has no calls. `tools` outlives it.
  static std::unique_ptr<CallReader> make(const OutputFormat& format, const ToolTypes& tools);
  virtual ~CallReader() = default;

  /// Begins to read at `begin`, behind an opening tag. Positions never decrease, except that after a failure
  /// reading may begin again anywhere behind `begin`.
  void start(size_t begin, Rules rules);
  /// The same of a call whose name is known already, at its arguments.
  void start(size_t begin, Rules rules, std::string_view name);
  /// Reads on; nothing from `limit` on counts. The text from start()'s `begin` on must still be there.
  virtual Status read(const TextWindow& text, size_t limit) = 0;
  /// After More, when nothing more comes: whether the call is whole all the same. `turn_ended`: the model
  /// ended its answer itself.
  virtual bool finish(const TextWindow& text, size_t limit, bool turn_ended) = 0;
  /// After More: nothing more comes, and this is no call.
  virtual void give_up() {}

  /// After Broken and Done: the position behind the call.
  size_t end() const { return at_; }
  /// After Done: another call begins at end(), for the opening tag stands before several.
  bool more() const { return more_; }
  /// Whether this is certainly a call; it stays so.
  bool opened() const { return opened_; }
  /// The tool's name, as far as it is known.
  const std::string& name() const { return name_; }
  /// What is new of the arguments: parts of a JSON object as text, without white space between its parts; the
  /// last part comes with Done or finish(). Of a key given twice the last value counts, as in all JSON.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 protected:
  CallReader(const OutputFormat& format, const ToolTypes& tools) : format_(format), tools_(tools) {}

  /// Makes ready for a call at at_.
  virtual void restart() = 0;
  /// Then: the name at hand is the call's, and its arguments come.
  virtual void take_name(std::string_view) {}
  /// Skips white space; false at the limit.
  bool skip_space(const TextWindow& text, size_t limit);
  /// Passes the tag if it stands here.
  TagMatch pass_tag(const TextWindow& text, size_t limit, std::string_view tag);
  /// Passes what can be in a name; false at the limit.
  bool pass_name(const TextWindow& text, size_t limit);
  bool is_welcome(std::string_view name) const { return !rules_.only_declared || tools_.declares(name); }

  const OutputFormat& format_;
  const ToolTypes& tools_;
  Rules rules_ = {};
  size_t at_ = 0;  ///< where reading goes on
  bool opened_ = false, more_ = false;
  std::string name_, arguments_;
};

std::unique_ptr<CallReader> make_tagged_reader(const OutputFormat& format, const ToolTypes& tools);
std::unique_ptr<CallReader> make_json_reader(const OutputFormat& format, const ToolTypes& tools);

}  // namespace sluice::text
