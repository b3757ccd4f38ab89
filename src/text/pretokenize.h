// Cuts a text into the pieces inside which BPE merges: regex passes, chosen by the name that a GGUF file
// gives in tokenizer.ggml.pre. Knows text and patterns; tokens and vocabularies are not its business.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// One kind of pre-tokenizer. Patterns are Perl regexes as the models' own tokenizers publish them, except
/// that `\s` is exactly Unicode White_Space. Pass by pass, every piece is replaced by the matches in it and
/// the gaps between them, in order, so a pass only ever cuts further and sees nothing beyond its piece.
struct PreTokenizerRow {
  std::vector<std::string> names;  ///< the values of tokenizer.ggml.pre
  bool ignore_merges;  ///< a piece that is a token as a whole is that token, whatever the merges say
  std::vector<std::string> passes;  ///< regexes, in order
  bool begins = false;  ///< texts begin with the token for that, where a file does not say whether they do
};

/// All rows. A new one needs its name, its passes and cases in the test's fixture.
const std::vector<PreTokenizerRow>& pretokenizer_rows();

/// The row of a name; an empty name is "default". Throws Error that lists the known names.
const PreTokenizerRow& pretokenizer_row(std::string_view pre);

/// The compiled passes of one row. Splitting is const and may be called from several threads at once.
class PreTokenizer {
 public:
  /// Compiles. With `jit` false, or where the system allows no run-time code, the interpreter runs the
  /// patterns: the same pieces, several times slower. Throws Error when a pattern does not compile.
  explicit PreTokenizer(const PreTokenizerRow& row, bool jit = true);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Replaces `pieces` by views into `text`: none is empty, and joined they are `text`. Bytes that are not
  /// UTF-8 are cut as U+FFFD would be, one for each maximal subpart. Throws Error when a match runs into a
  /// limit; it never cuts wrongly instead.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::text
