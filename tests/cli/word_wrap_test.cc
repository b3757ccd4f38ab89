// Text wrapped at words, seen on a terminal: what the output does to a screen is worked out here, and
// compared with lines that were filled word by word.
#include "cli/word_wrap.h"

#include <gtest/gtest.h>

#include <clocale>
#include <random>
#include <string>
#include <vector>

namespace sluice::cli {
namespace {

/// A terminal as far as is needed: characters, newlines, cursor back, erasing the rest of the line. Nothing
/// may reach its last column, where terminals differ.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}

  void print(std::string_view out) {
    for (size_t i = 0; i < out.size();) {
      if (out[i] == '\n') {
        rows_.emplace_back();
        at_ = 0;
        ++i;
      } else if (out[i] == '\x1b') {
        size_t end = i + 2;
        while (std::isdigit(static_cast<unsigned char>(out[end])) != 0) ++end;
        const std::string number(out.substr(i + 2, end - i - 2));
        if (out[end] == 'D') {
          const auto back = static_cast<size_t>(std::stoi(number));
          ASSERT_LE(back, at_);
          at_ -= back;
        } else {
          ASSERT_EQ(out[end], 'K');
          rows_.back().resize(at_);
        }
        i = end + 1;
      } else {
        size_t end = i + 1;
        while (end < out.size() && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) ++end;
        const std::string character(out.substr(i, end - i));
        const size_t width = character >= "\u4e00" && character <= "\u9fff" ? 2 : 1;
        ASSERT_TRUE(any_width || at_ + width < columns_) << "the last column of: " << text();
        rows_.back().resize(std::max(rows_.back().size(), at_ + width));
        rows_.back()[at_] = character;
        at_ += width;
        i = end;
      }
    }
  }
  std::string text() const {
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (const std::string& cell : row) line += cell;
      while (line.ends_with(' ')) line.pop_back();
      out += line + "\n";
    }
    out.pop_back();
    return out;
  }

  bool any_width = false;

 private:
  size_t columns_, at_ = 0;
  std::vector<std::vector<std::string>> rows_{1};
};

/// The words, as many a line as fit; a word that is longer than a line begins a line and is cut.
std::string filled(const std::vector<std::string>& words, size_t columns) {
  std::string out, line;
  for (std::string word : words) {
    if (!line.empty() && line.size() + 1 + word.size() > columns) out += line + "\n", line.clear();
    for (; word.size() > columns; word.erase(0, columns)) out += word.substr(0, columns) + "\n";
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line;
}

std::string shown(const std::string& text, int columns, const std::vector<size_t>& cuts = {},
                  bool any_width = false) {
  WordWrap wrap;
  Screen screen(static_cast<size_t>(columns));
  screen.any_width = any_width;
  size_t begin = 0;
  for (const size_t cut : cuts)
    screen.print(wrap.push(std::string_view(text).substr(begin, cut - begin), columns)), begin = cut;
  screen.print(wrap.push(std::string_view(text).substr(begin), columns));
  return screen.text();
}

TEST(WordWrap, FillsLinesHoweverTheTextComes) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 300; ++turn) {
    const int columns = 20 + static_cast<int>(random() % 40);
    std::vector<std::string> words(random() % 60 + 1);
    std::string text;
    for (std::string& word : words) {
      word = std::string(random() % 12 == 0 ? random() % 150 + 1 : random() % 11 + 1,
                         static_cast<char>('a' + random() % 26));
      text += (text.empty() ? "" : " ") + word;
    }
    std::vector<size_t> cuts;
    for (size_t at = random() % 4; at < text.size(); at += random() % 7 + 1) cuts.push_back(at);
    EXPECT_EQ(shown(text, columns, cuts), filled(words, static_cast<size_t>(columns) - 1))
        << text << " at " << columns;
  }
}

TEST(WordWrap, KeepsLinesAndIndents) {
  EXPECT_EQ(shown("one\n\n  - two three four five six seven\n- eight", 20),
            "one\n\n  - two three four\nfive six seven\n- eight");
  EXPECT_EQ(shown("exactly nineteen ab and more", 20), "exactly nineteen ab\nand more");
  EXPECT_EQ(shown("spaces             at the edge", 20), "spaces\nat the edge");
}

TEST(WordWrap, LeavesCodeAsItIs) {
  const std::string code = "```\nfor (int i = 0; i < 100; ++i) print(i);\n```\n";
  EXPECT_EQ(shown(code + "and words that are wrapped", 20, {1, 2, 5, 30}, true),
            code + "and words that are\nwrapped");
}

TEST(WordWrap, CountsColumnsNotBytes) {
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) GTEST_SKIP() << "no locale C.UTF-8 here";
  EXPECT_EQ(
      shown(
          "\u00e4\u00e4\u00e4\u00e4\u00e4 \u00f6\u00f6\u00f6\u00f6\u00f6 \u00fc\u00fc\u00fc\u00fc\u00fc x y",
          20),
      "\u00e4\u00e4\u00e4\u00e4\u00e4 \u00f6\u00f6\u00f6\u00f6\u00f6 \u00fc\u00fc\u00fc\u00fc\u00fc x\ny");
  // Nine wide characters and no more; between them a line may end.
  EXPECT_EQ(shown("\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u56fd\u56fd", 20),
            "\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\n\u56fd\u56fd");
  // Marks take none.
  std::string marks = "e";
  for (int i = 0; i < 10'000; ++i) marks += "\u0301";
  WordWrap wrap;
  EXPECT_EQ(wrap.push(marks, 20), marks);
}

TEST(WordWrap, LeavesNarrowOrUnknownTerminalsAlone) {
  const std::string text = "some words that are longer than the line";
  EXPECT_EQ(WordWrap().push(text, 0), text);
  EXPECT_EQ(WordWrap().push(text, 12), text);
}

}  // namespace
}  // namespace sluice::cli
