// Pre-tokenizers against fixed cases and Python's regex module, on bytes that are no text, and on long runs.
#include "text/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/support.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

std::vector<std::string> cut(const PreTokenizer& pre, const std::string& text) {
  std::vector<std::string_view> pieces;
  pre.split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

/// Compiles each pre-tokenizer once.
class ByName {
 public:
  explicit ByName(bool jit) : jit_(jit) {}
  const PreTokenizer& operator[](const std::string& pre) {
    const auto found = made_.find(pre);
    if (found != made_.end()) return found->second;
    return made_.emplace(pre, PreTokenizer(pretokenizer_row(pre), jit_)).first->second;
  }

 private:
  bool jit_;
  std::map<std::string, PreTokenizer> made_;
};

/// Checks cases as lines of JSON, with both engines; returns how many by pre-tokenizer.
std::map<std::string, int> check_cases(const std::vector<std::string>& lines) {
  ByName compiled(true), interpreted(false);
  std::map<std::string, int> count;
  for (const std::string& line : lines) {
    const auto row = nlohmann::json::parse(line);
    const std::string pre = row.at("pre"), text = row.at("text");
    const std::vector<std::string> pieces = row.at("pieces");
    EXPECT_EQ(cut(compiled[pre], text), pieces) << line.substr(0, 300);
    EXPECT_EQ(cut(interpreted[pre], text), pieces) << "interpreter: " << line.substr(0, 300);
    ++count[pre];
    if (testing::Test::HasFailure()) break;
  }
  return count;
}

std::vector<std::string> file_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(PreTokenizer, CutsTheFixtureAsWritten) {
  const auto count = check_cases(file_lines(SLUICE_SOURCE_DIR "/tests/text/pretokenize.jsonl"));
  EXPECT_EQ(count.size(), 15u);
  EXPECT_EQ(count.at("glm4"), 69);
  EXPECT_EQ(count.at("deepseek-llm"), 61);  // without the longest texts, which would make the file large
}

TEST(PreTokenizer, CutsAllSharedCasesAsWritten) {
  const std::string path = shared_data("pretokenize/cases.jsonl");
  const auto lines = file_lines(path);
  if (lines.empty()) GTEST_SKIP() << "no " + path;
  for (const auto& [pre, count] : check_cases(lines)) EXPECT_EQ(count, 69) << pre;
}

TEST(PreTokenizer, AgreesWithPythonOnRandomTexts) {
  const auto count = check_cases(python_lines("pretokenize_oracle.py", "2500 7"));
  EXPECT_EQ(count.size(), 15u);
  for (const auto& [pre, texts] : count) EXPECT_EQ(texts, 2500) << pre;
}

// What llama.cpp's loader says of these names: which cut alike, and whose texts begin with BOS by themselves.
TEST(PreTokenizer, NamesOfOneKindShareARow) {
  const std::vector<std::vector<std::string>> alike = {
      {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"},
      {"qwen2", "deepseek-r1-qwen", "megrez"},
      {"glm4", "chatglm-bpe", "smaug-bpe", "dbrx"},
      {"gpt-2", "gigachat", "a.x-4.0", "trillion", "exaone4"},
      {"smollm", "starcoder", "command-r", "minerva-7b"},
      {"tekken"},
      {"gpt-4o", "llama4"},
      {"seed-coder"}};
  for (const auto& names : alike) {
    const PreTokenizerRow& row = pretokenizer_row(names[0]);
    for (const std::string& name : names) EXPECT_EQ(&pretokenizer_row(name), &row) << name;
    const bool begins = names[0] == "llama-bpe" || names[0] == "tekken";
    EXPECT_EQ(row.begins, begins) << names[0];
    EXPECT_EQ(row.ignore_merges, begins) << names[0];
  }
}

TEST(PreTokenizer, EveryNameHasARowAndCompiles) {
  for (const PreTokenizerRow& row : pretokenizer_rows()) {
    for (const std::string& name : row.names) EXPECT_EQ(&pretokenizer_row(name), &row) << name;
    EXPECT_EQ(cut(PreTokenizer(row), "a b"), (std::vector<std::string>{"a", " b"})) << row.names[0];
  }
  EXPECT_EQ(&pretokenizer_row(""), &pretokenizer_row("default"));
  try {
    pretokenizer_row("glm5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"glm5\" is unknown (known: glm4, chatglm-bpe, "));
  }
}

TEST(PreTokenizer, CutsBrokenUtf8LikeReplacementCharacters) {
  const PreTokenizer pre(pretokenizer_row("glm4"));
  std::mt19937 random(3);
  const std::string_view parts[] = {"a",
                                    " ",
                                    "\n",
                                    "7",
                                    "\u4e2d",
                                    "\xE4\xB8",
                                    "\xFF",
                                    "\x80",
                                    "\xF0\x9F\x98",
                                    "\xC3",
                                    "\xED\xA0\x80",
                                    "!",
                                    "\xC0\xAF",
                                    "\uFFFD",
                                    "'s"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % std::size(parts)];
    std::string replaced;
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(std::string_view(text).substr(at));
      replaced +=
          step.kind == Utf8Step::Valid ? std::string_view(text).substr(at, step.length) : kReplacement;
      at += step.length;
    }
    const auto pieces = cut(pre, text), expected = cut(pre, replaced);
    ASSERT_EQ(pieces.size(), expected.size());
    std::string joined;
    for (size_t i = 0; i < pieces.size(); ++i) {
      joined += pieces[i];
      if (utf8_valid_prefix(pieces[i]) == pieces[i].size()) {
        EXPECT_EQ(pieces[i], expected[i]);
      }
    }
    ASSERT_EQ(joined, text);
  }
}

TEST(PreTokenizer, LimitsBecomeErrors) {
  const PreTokenizerRow exponential{{"exponential"}, false, {"(?:a+)+(?=b)"}};
  const std::string text = std::string(64, 'a') + "c";
  for (const bool jit : {true, false}) {
    try {
      cut(PreTokenizer(exponential, jit), text);
      FAIL() << "jit " << jit;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::StartsWith("pre-tokenizer exponential: cannot cut a piece of 65 bytes"));
      EXPECT_THAT(error.what(), testing::HasSubstr("match limit exceeded"));
    }
  }
  EXPECT_THROW(PreTokenizer(PreTokenizerRow{{"bad"}, false, {"(a"}}), Error);
}

TEST(PreTokenizer, DeepMatchesGrowTheStack) {
  const PreTokenizerRow deep{{"deep"}, false, {"(?:ab|a|b)+c"}};
  const std::string text = repeated("ab", 1 << 20) + "c";
  for (const bool jit : {true, false})
    EXPECT_EQ(cut(PreTokenizer(deep, jit), text).size(), 1u) << "jit " << jit;
}

TEST(PreTokenizer, EmptyMatchesCutNothing) {
  const PreTokenizerRow row{{"empty"}, false, {"x*"}};
  EXPECT_EQ(cut(PreTokenizer(row), "\u4e2dxx\u4e2dx"),
            (std::vector<std::string>{"\u4e2d", "xx", "\u4e2d", "x"}));
}

// The slowest of the long runs, each with tails that the last pass cannot match, so that it tries every
// start.
void split_long_runs(const PreTokenizerRow& row, size_t bytes) {
  const PreTokenizer compiled(row), interpreted(row, false);
  double worst = 0;
  std::string worst_case;
  for (const std::string& unit : long_run_units()) {
    for (const std::string tail : {"", "\u4e2d", "x"}) {
      const std::string text = repeated(unit, bytes) + tail;
      std::vector<std::string_view> pieces;
      for (const PreTokenizer* pre : {&compiled, &interpreted}) {
        const double took = seconds([&] { pre->split(text, pieces); });
        EXPECT_LT(took, 2 * kSlowdown)
            << row.names[0] << " on a run of \"" << unit << "\" and \"" << tail << '"';
        if (took > worst) worst = took, worst_case = fmt::format("\"{}\" and \"{}\"", unit, tail);
      }
    }
  }
  fmt::print("{}: slowest of {} bytes: {:.3f} s, {}\n", row.names[0], bytes, worst, worst_case);
}

TEST(PreTokenizer, AMegabyteOfOneThingTakesLinearTime) { split_long_runs(pretokenizer_row("glm4"), 1 << 20); }

TEST(PreTokenizer, LongRunsTakeLinearTimeInEveryRow) {
  for (const PreTokenizerRow& row : pretokenizer_rows()) split_long_runs(row, 1 << 17);
}

}  // namespace
}  // namespace sluice::text
