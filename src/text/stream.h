// Token bytes on their way to a reader: whole UTF-8 characters only, and nothing of a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// Joins token bytes into whole characters. Bytes that can never become UTF-8 come out as U+FFFD, one for
/// each maximal subpart (utf8.h), so the result does not depend on how the bytes were chunked.
class Utf8Stream {
 public:
  /// Adds bytes and returns what is complete now.
  std::string push(std::string_view bytes);
  /// What is left at the end; an unfinished character becomes U+FFFD.
  std::string finish();
  /// Whether the bytes so far end within a character.
  bool unfinished() const { return !pending_.empty(); }

 private:
  std::string pending_;  ///< the beginning of a character: at most 3 bytes
};

/// Watches a text for stop strings, across any chunking. Holds back what may be the beginning of one.
/// The stop string that is complete first ends the text, the longest of several that end at the same byte;
/// it is not shown, nor is anything after it.
class StopStream {
 public:
  /// Empty stop strings are left out: they would stop before the first byte.
  explicit StopStream(std::vector<std::string> stops);
  /// Adds text and returns what is safe to show now. After stopped() it returns nothing more.
  std::string push(std::string_view text);
  /// What was held back, once no more text comes.
  std::string finish();
  bool stopped() const { return stopped_; }
  /// The stop string that ended the text; empty before.
  const std::string& stop() const { return stop_; }

 private:
  // Knuth, Morris and Pratt: a stop string and how much of it the text ends with. What is held back is such
  // a beginning of a stop string, so it need not be kept.
  struct Watch {
    std::string stop;
    std::vector<uint32_t> border;  ///< by length: the longest beginning of the stop that also ends it
    uint32_t matched = 0;
    void step(char byte);
  };
  std::string_view held() const;

  std::vector<Watch> watches_;
  bool stopped_ = false;
  std::string stop_;
};

}  // namespace sluice::text
