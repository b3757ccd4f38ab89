// Reads one tool call at a time from a growing text, from behind its opening tag to its closing tag, and says
// as soon as it is certain whether there is one. Knows how calls are written; what becomes of text that is
// none is its user's business.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/output_format.h"
#include "text/text_window.h"
#include "text/tool_types.h"

namespace sluice::text {

/// A call that a model wrote.
struct ToolCall {
  std::string name;
  std::string arguments;  ///< a JSON object as text, without white space between its parts
};

class CallReader {
 public:
  enum class Status { More, Failed, Done };

  /// The reader of a format; null when it has no calls. `tools` outlives it.
  static std::unique_ptr<CallReader> make(const OutputFormat& format, const ToolTypes& tools);
  virtual ~CallReader() = default;

  /// Begins to read at `begin`, behind an opening tag. With `only_declared` a call of an unknown tool fails.
  /// Positions never decrease, except that after a failure reading may begin again anywhere behind `begin`.
  virtual void start(size_t begin, bool only_declared) = 0;
  /// Reads on; nothing from `limit` on counts. The text from start()'s `begin` on must still be there.
  virtual Status read(const TextWindow& text, size_t limit) = 0;
  /// After More: whether all but the closing tag has been read.
  virtual bool lacks_only_close() const { return false; }
  /// After More: nothing more comes, and this is no call.
  virtual void give_up() {}
  /// After Done: the position behind the closing tag.
  size_t end() const { return at_; }
  /// After Done, or lacks_only_close(): the call.
  virtual ToolCall call(const TextWindow& text) const = 0;

 protected:
  /// Skips white space; false at the limit.
  bool skip_space(const TextWindow& text, size_t limit);
  /// Passes the tag if it stands here.
  TagMatch pass_tag(const TextWindow& text, size_t limit, std::string_view tag);
  /// Passes what can be in a name; false at the limit.
  bool pass_name(const TextWindow& text, size_t limit);

  size_t at_ = 0;  ///< where reading goes on
};

}  // namespace sluice::text
