// The table of pre-tokenizers: which regexes cut a text, by the name in tokenizer.ggml.pre. Names are those
// that llama.cpp's converter writes for models of the architectures that run here; a row has all that mean
// the same. The patterns are those that the models were trained with. Three spots are written otherwise, with
// the same meaning, where PCRE2 would read them differently or need time quadratic in the length of a run:
//   \p{Han}             is \p{sc:Han} here: PCRE2 takes the bare name for the script extensions
//   \s+$                is (?<!\s)\s++\z: only the last run of white space can match, so a start inside a
//                       run need not be tried, and a run that is not the last is given up at once
//   [A&&[^\p{Han}]]     is a negated set of everything else; PCRE2 10.42 has no intersection
#include "base/error.h"
#include "text/pretokenize.h"

namespace sluice::text {

namespace {

using std::string;

const string kContraction = R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))";

// What ends most of the patterns: a run of white space up to its last line end; or, before a word, all of it
// but the last character (which a word takes along if it is a space); or whatever is left.
const string kBlank = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

const string kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";

// Llama 3's pattern; the others of its kind differ in how they cut digits.
string llama3(const string& digits) {
  return kContraction + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits + R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kBlank;
}

// Words by case, as in GPT-4o's pattern: an upper part, then a lower part. Letters without case and marks are
// in both sets.
string cased_words(const string& upper, const string& lower, const string& behind = kContraction + "?") {
  const string before = R"([^\r\n\p{L}\p{N}]?)";
  return before + upper + "*" + lower + "+" + behind + "|" +  //
         before + upper + "+" + lower + "*" + behind;
}
const string kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";

// The alphabetic scripts of DeepSeek LLM's second pass.
const string kDeepSeekLetters =
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c})"
    R"(\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5})"
    R"(\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b})"
    R"(\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45})"
    R"(\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4})"
    R"(\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb})"
    R"(\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139})"
    R"(\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4})"
    R"(\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f})"
    R"(\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17})"
    R"(\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943})";

// Far more than ideographs: U+0800 to U+4E00 takes in General Punctuation, for one.
const string kDeepSeekCjk = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";

const string kIdeographsAndKana = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";

std::vector<PreTokenizerRow> make_rows() {
  return {
      {{"glm4", "chatglm-bpe", "smaug-bpe", "dbrx"}, false, {llama3(R"(\p{N}{1,3})")}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       true,
       {llama3(R"(\p{N}{1,3})")},
       true},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2"},
       false,
       {llama3(R"(\p{N})")}},
      {{"qwen35"},  // marks belong to the letters before them
       false,
       {kContraction + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" + kBlank}},
      {{"gpt-2", "gigachat", "phi-2", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion",
        "granite-docling"},
       false,
       {kGpt2}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       false,
       {R"(\p{N})", kGpt2}},
      {{"seed-coder"},
       false,
       {kContraction + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+)" + kBlank}},
      {{"tekken"},
       true,
       {cased_words(kUpper, kLower, "") + R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + kBlank},
       true},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
       false,
       {cased_words(kUpper, kLower) + R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + kBlank}},
      {{"default"}, false, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"deepseek-llm"},
       false,
       {R"([\r\n])", R"(\s?[)" + kDeepSeekLetters + "]+",
        R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)",
        R"((?<!\s)\s++\z)", kDeepSeekCjk, R"(\p{N}+)"}},
      {{"deepseek-coder"}, false, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekCjk, R"(\p{N})"}},
      {{"deepseek-v3", "joyai-llm"},
       false,
       {R"(\p{N}{1,3})", kIdeographsAndKana,
        R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" + kBlank}},
      {{"youtu"},
       true,
       {R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+)"
        R"(|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c})"
        R"(\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+)"
        R"(|[\x{3105}-\x{312f}]+|)" +
            kIdeographsAndKana,
        cased_words(kUpper, kLower) + R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + kBlank}},
      {{"kimi-k2"},
       false,
       {R"([\p{sc:Han}]+|)" +
        cased_words(R"([^\p{sc:Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}])",
                    R"([^\p{sc:Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}])") +
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kBlank}},
  };
}

}  // namespace

const std::vector<PreTokenizerRow>& pretokenizer_rows() {
  static const std::vector<PreTokenizerRow> rows = make_rows();
  return rows;
}

const PreTokenizerRow& pretokenizer_row(std::string_view pre) {
  if (pre.empty()) pre = "default";
  string known;
  for (const PreTokenizerRow& row : pretokenizer_rows()) {
    for (const string& name : row.names) {
      if (name == pre) return row;
      known += (known.empty() ? "" : ", ") + name;
    }
  }
  fail("pre-tokenizer \"{}\" is unknown (known: {})", pre, known);
}

}  // namespace sluice::text
