// Streams give the same text however it is chunked; UTF-8 by its definition in arithmetic.
#include "text/stream.h"

#include <gtest/gtest.h>

#include "text/support.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

/// Runs a stream over every way to cut `input` (or, beyond 14 bytes, 4000 random ways) and collects results.
template <typename Stream, typename Check>
void for_all_chunkings(const std::string& input, const Stream& fresh, Check check) {
  const size_t gaps = input.empty() ? 0 : input.size() - 1;
  std::mt19937_64 random(9);
  const uint64_t ways = gaps < 14 ? uint64_t{1} << gaps : 4000;
  for (uint64_t way = 0; way < ways; ++way) {
    Stream stream = fresh;
    std::string out, chunk;
    for (size_t i = 0; i < input.size(); ++i) {
      chunk += input[i];
      const bool cut = gaps < 14 ? (way >> i & 1) != 0 : random() % 3 == 0;
      if (!cut && i != gaps) continue;
      out += stream.push(chunk);
      chunk.clear();
    }
    out += stream.finish();
    check(out, stream);
  }
}

/// The code point of a sequence by UTF-8's arithmetic, or -1.
int64_t decode_by_arithmetic(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  int64_t c = 0;
  size_t length = 0;
  if (at(0) < 0x80) {
    c = at(0), length = 1;
  } else if (at(0) >> 5 == 6) {
    c = at(0) & 31, length = 2;
  } else if (at(0) >> 4 == 14) {
    c = at(0) & 15, length = 3;
  } else if (at(0) >> 3 == 30) {
    c = at(0) & 7, length = 4;
  }
  if (length != s.size()) return -1;
  for (size_t i = 1; i < length; ++i) {
    if (at(i) >> 6 != 2) return -1;
    c = c << 6 | (at(i) & 63);
  }
  constexpr int64_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kLeast[length] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return -1;
  return c;
}

/// Whether some character begins with these bytes.
bool begins_a_character(const std::string& s) {
  if (decode_by_arithmetic(s) >= 0) return true;
  if (s.size() >= 4) return false;
  for (const char next : {'\x80', '\x90', '\xA0', '\xBF'})
    if (begins_a_character(s + next)) return true;
  return false;
}

/// Replacement by maximal subparts, from the two functions above.
std::string replaced_by_definition(const std::string& s) {
  std::string out;
  for (size_t at = 0; at < s.size();) {
    size_t length = 1;
    while (at + length < s.size() && begins_a_character(s.substr(at, length + 1))) {
      if (decode_by_arithmetic(s.substr(at, length)) >= 0) break;
      ++length;
    }
    const std::string part = s.substr(at, length);
    out += decode_by_arithmetic(part) >= 0 ? part : std::string(kReplacement);
    at += length;
  }
  return out;
}

TEST(Utf8, EverySequenceOfBoundaryBytesIsReadAsDefined) {
  const std::string bytes(
      "\x00\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF", 24);
  const auto check = [](const std::string& s) {
    if (testing::Test::HasFailure()) return;
    Utf8Stream stream;
    std::string got = stream.push(s);
    got += stream.finish();
    ASSERT_EQ(got, replaced_by_definition(s)) << testing::PrintToString(s);
    Utf8Stream slow;
    std::string bit_by_bit;
    for (const char c : s) bit_by_bit += slow.push({&c, 1});
    ASSERT_EQ(bit_by_bit + slow.finish(), got) << testing::PrintToString(s);
  };
  for (int a = 0; a < 256; ++a) {
    check({static_cast<char>(a)});
    for (int b = 0; b < 256; ++b) check({static_cast<char>(a), static_cast<char>(b)});
  }
  const size_t step = kSlowdown > 1 ? 3 : 1;
  for (const char a : bytes)
    for (const char b : bytes)
      for (const char c : bytes) {
        check({a, b, c});
        for (size_t d = 0; d < bytes.size(); d += step) check({a, b, c, bytes[d]});
      }
}

TEST(Utf8, EveryCharacterIsValid) {
  for (int64_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    if (c < 0x80) {
      s = {static_cast<char>(c)};
    } else if (c < 0x800) {
      s = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    } else {
      s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const Utf8Step step = utf8_step(s);
    ASSERT_TRUE(step.kind == Utf8Step::Valid && step.length == s.size()) << c;
  }
}

TEST(Utf8Stream, ChunksDoNotMatter) {
  for (const std::string input :
       {"", "plain", "\u00e9\u4e2d\U0001F600", "a\xF0\x9F\x98", "\xE4\xB8x\xAD", "\xFF\xFE\xC3",
        "\xED\xA0\x80z", "\xF0\x9F\xF0\x9F\x98\x80", "\xE4\xE4\xB8\xAD\xE4\xB8"}) {
    const std::string expected = replaced_by_definition(input);
    for_all_chunkings(input, Utf8Stream(),
                      [&](const std::string& out, const Utf8Stream&) { ASSERT_EQ(out, expected); });
  }
}

TEST(Utf8Stream, HoldsBackOnlyUnfinishedCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE4\xB8"), "a");
  EXPECT_EQ(stream.push(""), "");
  EXPECT_EQ(stream.push("\xAD"
                        "b\xF0"),
            "\u4e2d"
            "b");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

/// What StopStream promises: the stop that is complete first ends the text, the longest of equal ones.
std::string stopped_by_definition(const std::string& text, const std::vector<std::string>& stops,
                                  bool* stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (!stop.empty() && text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest == 0) continue;
    *stopped = true;
    return text.substr(0, end - longest);
  }
  *stopped = false;
  return text;
}

void check_stops(const std::string& text, const std::vector<std::string>& stops) {
  bool stopped = false;
  const std::string expected = stopped_by_definition(text, stops, &stopped);
  for_all_chunkings(text, StopStream(stops), [&](const std::string& out, const StopStream& stream) {
    ASSERT_EQ(out, expected) << text << " with " << testing::PrintToString(stops);
    ASSERT_EQ(stream.stopped(), stopped);
  });
}

TEST(StopStream, ChunksDoNotMatter) {
  check_stops("hello world", {});
  check_stops("hello world", {"", ""});
  check_stops("hello world", {"o w"});
  check_stops("hello world", {"worlds"});
  check_stops("hello world", {"world", "ld"});
  check_stops("xabcabd", {"abd", "abca"});
  check_stops("aababab", {"abab", "bb"});
  check_stops("abc", {"abc", "b"});
  check_stops("aaaaab", {"aaab"});
  check_stops("\n\nUser: x", {"\nUser:", "\n\n\n"});
  check_stops("\u4e2d\u6587\u3002end", {"\u6587\u3002"});
}

TEST(StopStream, RandomTextsStopAsDefined) {
  std::mt19937 random(11);
  const auto word = [&](size_t most) {
    std::string out;
    for (size_t i = 1 + random() % most; i > 0; --i) out += "abc"[random() % (1 + random() % 3)];
    return out;
  };
  for (int round = 0; round < 400; ++round) {
    std::vector<std::string> stops;
    for (size_t i = random() % 4; i > 0; --i) stops.push_back(word(5));
    check_stops(word(8), stops);
    check_stops(word(60).substr(0, 13), stops);
  }
}

TEST(StopStream, ShowsAtOnceWhatCannotBecomeAStop) {
  StopStream stream({"</s>", "STOP"});
  EXPECT_EQ(stream.push("text <"), "text ");
  EXPECT_EQ(stream.push("/"), "");
  EXPECT_EQ(stream.push("b> S"), "</b> ");
  EXPECT_EQ(stream.push("TO"), "");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.push("P and more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.push("nothing"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StopStream, LongStopsTakeLinearTime) {
  const std::string run = repeated("a", 1 << 20);
  EXPECT_LT(seconds([&] {
              StopStream stream({run.substr(0, 1 << 19) + "b", run.substr(0, 1 << 18) + "c", "never"});
              size_t shown = 0;
              for (size_t at = 0; at < run.size(); at += 7) shown += stream.push(run.substr(at, 7)).size();
              EXPECT_EQ(shown + stream.finish().size(), run.size());
            }),
            2 * kSlowdown);
}

}  // namespace
}  // namespace sluice::text
