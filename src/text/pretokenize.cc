// Runs the passes of a pre-tokenizer with PCRE2. Linear in the length of the text for the patterns of the
// table: the text is checked for UTF-8 once, and every match starts from an offset in its piece.
#include "text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/interruption.h"
#include "text/utf8.h"

namespace sluice::text {

namespace {

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* what) const {
    function(what);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

// Without this stack, compiled patterns run on 32 KiB; it grows from the first figure to the second.
constexpr size_t kJitStackStart = size_t{1} << 20;
constexpr size_t kJitStackMost = size_t{512} << 20;

std::string regex_message(int code) {
  char text[256] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

// PCRE2's own \s has changed with its versions (U+180E was in it) and with its flags: name the set.
std::string with_named_space(std::string_view pattern) {
  static constexpr std::string_view kSpace =
      R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string out;
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's' && in_set) {
        out += kSpace;
      } else if (escaped == 's' || (escaped == 'S' && !in_set)) {
        out.append(escaped == 's' ? "[" : "[^").append(kSpace).append("]");
      } else {
        out.append({c, escaped});
      }
      continue;
    }
    if (c == '[') in_set = true;
    if (c == ']') in_set = false;
    out += c;
  }
  return out;
}

Code compile(std::string_view pattern, bool jit) {
  const std::string source = with_named_space(pattern);
  int code = 0;
  PCRE2_SIZE at = 0;
  Code compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                              PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr));
  if (!compiled) fail("regex {}: at byte {}: {}", source, at, regex_message(code));
  // A refusal (no JIT in this build, no executable memory on this system) leaves the interpreter.
  if (jit) pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  return compiled;
}

// What one call of split() needs besides the patterns; one thread's.
class Matcher {
 public:
  explicit Matcher(size_t text_bytes)
      : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (!data_ || !context_) throw std::bad_alloc();
    // The patterns of the table need a few steps a character. What needs many more would need them squared.
    const uint64_t steps = 10'000'000 + 64 * uint64_t{text_bytes};
    pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  }

  /// Finds the first match at or after `from`; false if there is none.
  bool find(const pcre2_code* code, std::string_view piece, size_t from) {
    int result = run(code, piece, from);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
      stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      result = run(code, piece, from);
    }
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0)
      fail("cannot cut a piece of {} bytes at byte {}: {}", piece.size(), from, regex_message(result));
    return true;
  }
  size_t begin() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

 private:
  int run(const pcre2_code* code, std::string_view piece, size_t from) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), from,
                       PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }
  MatchData data_;
  MatchContext context_;
  JitStack stack_;
};

// Appends the matches in `piece` and the gaps around them.
void cut(Matcher& matcher, const pcre2_code* code, std::string_view piece,
         std::vector<std::string_view>& out) {
  size_t done = 0;  // everything before is in `out`
  size_t from = 0;
  while (from < piece.size() && matcher.find(code, piece, from)) {
    Interruptible::look();
    const size_t begin = matcher.begin(), end = matcher.end();
    if (begin == end) {  // an empty match cuts nothing: look on, one character further
      if (end == piece.size()) break;
      from = end + utf8_step(piece.substr(end)).length;
      continue;
    }
    if (begin > done) out.push_back(piece.substr(done, begin - done));
    out.push_back(piece.substr(begin, end - begin));
    done = from = end;
  }
  if (done < piece.size()) out.push_back(piece.substr(done));
}

// A copy of a text with U+FFFD for what is not UTF-8, and the way back.
struct Repaired {
  struct Spot {
    size_t end;       ///< in the copy, just after a U+FFFD
    size_t original;  ///< the same place in the text
  };
  std::string text;
  std::vector<Spot> spots;
};

Repaired repair(std::string_view text) {
  Repaired out;
  out.text.reserve(text.size() + 16);
  for (size_t at = 0; at < text.size();) {
    const size_t valid = utf8_valid_prefix(text.substr(at));
    out.text += text.substr(at, valid);
    at += valid;
    if (at == text.size()) break;
    at += utf8_step(text.substr(at)).length;
    out.text += kReplacement;
    out.spots.push_back({out.text.size(), at});
  }
  return out;
}

// Turns pieces of the copy into pieces of the text. No boundary falls inside a U+FFFD.
void restore(const Repaired& repaired, std::string_view text, std::vector<std::string_view>& pieces) {
  size_t spot = 0, begin = 0, end = 0, copied = 0;
  for (std::string_view& piece : pieces) {
    copied += piece.size();
    while (spot < repaired.spots.size() && repaired.spots[spot].end <= copied) ++spot;
    end = spot == 0 ? copied : repaired.spots[spot - 1].original + (copied - repaired.spots[spot - 1].end);
    piece = text.substr(begin, end - begin);
    begin = end;
  }
}

}  // namespace

struct PreTokenizer::Impl {
  std::string name;
  std::vector<Code> passes;

  /// `text` must be UTF-8.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const {
    Matcher matcher(text.size());
    pieces.assign(1, text);
    std::vector<std::string_view> before;
    for (const Code& pass : passes) {
      before.swap(pieces);
      pieces.clear();
      for (const std::string_view piece : before) cut(matcher, pass.get(), piece, pieces);
    }
  }
};

PreTokenizer::PreTokenizer(const PreTokenizerRow& row, bool jit) : impl_(std::make_unique<Impl>()) {
  impl_->name = row.names.at(0);
  for (const std::string& pass : row.passes) impl_->passes.push_back(compile(pass, jit));
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  pieces.clear();
  if (text.empty()) return;
  try {
    if (utf8_valid_prefix(text) == text.size()) {
      impl_->split(text, pieces);
    } else {
      const Repaired repaired = repair(text);
      impl_->split(repaired.text, pieces);
      restore(repaired, text, pieces);
    }
  } catch (const Error& error) {
    fail("pre-tokenizer {}: {}", impl_->name, error.what());
  }
}

}  // namespace sluice::text
