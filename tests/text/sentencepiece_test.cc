// SentencePiece: the merges against their definition, spaces, bytes, special tokens, bad vocabularies, the
// lists of a real vocabulary where it is at hand, and the time that long texts take.
#include "text/sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "text/support.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A small vocabulary: <unk>, <s>, </s>, the 256 bytes, then pieces. Owns what a Vocab views.
struct ToyPieces {
  std::vector<std::string> tokens;
  std::vector<TokenType> types;
  std::vector<float> scores;

  ToyPieces() {
    add("<unk>", 0, TokenType::Unknown);
    add("<s>", 0, TokenType::Control);
    add("</s>", 0, TokenType::Control);
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, TokenType::Byte);
  }
  int32_t add(std::string token, float score, TokenType type = TokenType::Normal) {
    tokens.push_back(std::move(token));
    types.push_back(type);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  Vocab vocab() const {
    Vocab out;
    out.model = "llama";
    out.tokens.assign(tokens.begin(), tokens.end());
    out.types = types;
    out.scores = scores;
    out.unk = 0, out.bos = 1, out.eos = 2;
    return out;
  }
};

ToyPieces toy_pieces() {
  ToyPieces toy;
  float score = -1;
  for (const char* piece :
       {"▁t", "er",  "in",     "▁a", "en", "on",  "▁th", "▁the", "▁▁",   "▁▁▁▁", "wh", "eel",
        "ee", "▁wh", "▁wheel", "he", "re", "and", "an",  "nd",   "水の", "12",   "aa", "aaaa"})
    toy.add(piece, score--);
  for (const char* piece : {"▁", "e", "t", "a", "o", "n", "i", "h", "r", "d", "w", "l", "1", "2", "水"})
    toy.add(piece, score--);
  return toy;
}

/// The definition: the best pair of neighbours, the leftmost of equal ones, until there is none.
std::vector<int32_t> by_definition(const ToyPieces& toy, std::string_view text) {
  std::map<std::string, int32_t> pieces;
  for (size_t id = 0; id < toy.tokens.size(); ++id)
    if (toy.types[id] == TokenType::Normal) pieces.emplace(toy.tokens[id], static_cast<int32_t>(id));
  std::string written;
  if (!text.empty()) written = kWrittenSpace;
  for (const char c : text) written += c == ' ' ? std::string(kWrittenSpace) : std::string(1, c);
  std::vector<std::string> symbols;
  for (size_t at = 0; at < written.size(); at += symbols.back().size())
    symbols.push_back(written.substr(at, utf8_step(std::string_view(written).substr(at)).length));
  while (true) {
    size_t best = symbols.size();
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = pieces.find(symbols[i] + symbols[i + 1]);
      if (found == pieces.end()) continue;
      if (best < symbols.size() && toy.scores[found->second] <= best_score) continue;
      best = i;
      best_score = toy.scores[found->second];
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> out;
  for (const std::string& symbol : symbols) {
    if (const auto found = pieces.find(symbol); found != pieces.end()) {
      out.push_back(found->second);
    } else {
      for (const char c : symbol) out.push_back(3 + static_cast<uint8_t>(c));
    }
  }
  return out;
}

std::string random_text(std::mt19937& random, const std::vector<std::string>& letters, size_t length) {
  std::string out;
  for (size_t i = 0; i < length; ++i) out += letters[random() % letters.size()];
  return out;
}

TEST(SentencePiece, AgreesWithTheDefinition) {
  const ToyPieces toy = toy_pieces();
  const Tokenizer tokenizer(toy.vocab());
  std::mt19937 random(3);
  const std::vector<std::string> letters = {"t", "h", "e", "e", "r",  "a",  "n", "d",  "w", "l",
                                            " ", " ", "1", "2", "水", "の", "q", "\n", "▁"};
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random, letters, random() % 40);
    ASSERT_EQ(tokenizer.encode(text, false), by_definition(toy, text)) << text;
  }
}

TEST(SentencePiece, RandomPiecesAgreeWithTheDefinition) {
  // Scores in random order and with ties, pieces of characters that are no pieces themselves.
  const std::vector<std::string> letters = {"a", "b", "の", " "};
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    ToyPieces toy;
    std::vector<std::string> known = {"a", "b", "の", std::string(kWrittenSpace)};
    for (const std::string& letter : known)
      if (random() % 3 != 0) toy.add(letter, static_cast<float>(random() % 10));
    for (int i = 0; i < 40; ++i) {
      const std::string piece = known[random() % known.size()] + known[random() % known.size()];
      if (piece.size() > 24) continue;
      known.push_back(piece);
      if (random() % 5 != 0) toy.add(piece, static_cast<float>(random() % (seed % 2 ? 6 : 1000)));
    }
    const Tokenizer tokenizer(toy.vocab());
    for (int i = 0; i < 200; ++i) {
      const std::string text = random_text(random, letters, 1 + random() % 50);
      ASSERT_EQ(tokenizer.encode(text, false), by_definition(toy, text)) << seed << ": " << text;
    }
  }
}

TEST(SentencePiece, ASharedVocabularyGivesItsLists) {
  const std::string path = shared_data("vocab/ggml-vocab-llama-spm.gguf");
  if (!std::ifstream(path)) GTEST_SKIP() << "no " + path;
  const auto lines = python_lines("vocab_dump.py", path);
  ASSERT_EQ(lines.size(), 1u);
  const auto dump = nlohmann::json::parse(lines[0]);
  const std::vector<std::string> tokens = dump.at("tokens");
  const std::vector<int> types = dump.at("types");
  Vocab vocab;
  vocab.model = "llama";
  vocab.tokens.assign(tokens.begin(), tokens.end());
  for (const int type : types) vocab.types.push_back(static_cast<TokenType>(type));
  vocab.scores = dump.at("scores").get<std::vector<float>>();
  vocab.unk = 0, vocab.bos = 1, vocab.eos = 2;
  double best = 1e9;
  for (int i = 0; i < 3; ++i) best = std::min(best, seconds([&] { Tokenizer{vocab}; }));
  fmt::print("{} tokens load in {:.3f} s\n", tokens.size(), best);
  const Tokenizer tokenizer(vocab);
  const auto lists = shared_token_lists(path);
  EXPECT_EQ(lists.size(), 46u);
  for (const auto& [text, expected] : lists) {
    EXPECT_EQ(tokenizer.encode(text, false), expected) << text;
    EXPECT_EQ(tokenizer.decode(expected, false), text);
  }
  double worst = 0;
  for (const std::string& unit : long_run_units()) {
    const std::string text = repeated(unit, 1 << 20);
    std::vector<int32_t> ids;
    const double took = seconds([&] { ids = tokenizer.encode(text, true); });
    EXPECT_LT(took, 2 * kSlowdown) << unit;
    EXPECT_TRUE(tokenizer.decode(ids, false) == text) << unit;
    worst = std::max(worst, took);
  }
  fmt::print("slowest MiB of one thing: {:.3f} s\n", worst);
}

TEST(SentencePiece, SpacesStandInFrontOfTextsOnly) {
  ToyPieces toy = toy_pieces();
  const int32_t user_defined = toy.add("<tool>", 0, TokenType::UserDefined);
  const Tokenizer tokenizer(toy.vocab());
  const int32_t the = tokenizer.find("▁the"), space = tokenizer.find("▁"), t = tokenizer.find("t");
  const int32_t he = tokenizer.find("he");
  EXPECT_THAT(tokenizer.encode("the", false), ElementsAre(the));
  EXPECT_THAT(tokenizer.encode(" the", false), ElementsAre(space, the));
  EXPECT_THAT(tokenizer.encode("", false), ElementsAre());
  EXPECT_THAT(tokenizer.encode("the</s>the<tool>the", true), ElementsAre(the, 2, the, user_defined, the));
  EXPECT_THAT(tokenizer.encode("<tool></s>", true), ElementsAre(user_defined, 2));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" the</s> the<tool>the ", true), true),
            " the</s> the<tool>the ");
  EXPECT_EQ(tokenizer.decode({{the, the}}, false), "the the");

  std::vector<int32_t> ids;
  tokenizer.append("the", false, ids);
  tokenizer.append("the", false, ids);
  EXPECT_THAT(ids, ElementsAre(the, t, he)) << "the second goes on where the first ended";

  Vocab vocab = toy.vocab();
  vocab.space_in_front = false;
  const Tokenizer bare(vocab);
  EXPECT_THAT(bare.encode("the the", false), ElementsAre(t, he, the));
  EXPECT_EQ(bare.decode({{the}}, false), " the");
}

TEST(SentencePiece, ControlTokensInTextStayText) {
  ToyPieces toy = toy_pieces();
  for (const char* part : {"<", "s", "/", ">", "<s", "</", "s>", "<0", "x0", "A>", "x0A>"}) toy.add(part, 5);
  const Tokenizer tokenizer(toy.vocab());
  for (const char* text : {"<s>", "</s>", "<unk>", "<0x0A>", "a<s>b"}) {
    const auto ids = tokenizer.encode(text, false);
    for (const int32_t id : ids) {
      EXPECT_NE(toy.types[id], TokenType::Control) << text;
      EXPECT_NE(id, 3 + '\n') << text;
    }
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
  EXPECT_THAT(tokenizer.encode("<s>", true), ElementsAre(1));
  EXPECT_EQ(tokenizer.bytes(1, false), "");
  EXPECT_EQ(tokenizer.bytes(1, true), "<s>");
  EXPECT_EQ(tokenizer.bytes(3 + '\n', false), "\n");
  EXPECT_TRUE(tokenizer.ends_generation(2));
}

TEST(SentencePiece, AnyBytesComeBack) {
  const Tokenizer tokenizer(toy_pieces().vocab());
  std::mt19937 random(5);
  const std::vector<std::string> parts = {"<s>", "</s",          ">",        "the wheel", "  ",
                                          "\n",  "\xE6\xB0\xB4", "\xE6\xB0", "\xFF",      "\xF4\x90\x80\x80",
                                          "水",  "\U0001F600",   "e\u0301"};
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i)
      text += random() % 3 == 0 ? std::string(1, static_cast<char>(random() % 256))
                                : parts[random() % parts.size()];
    for (const bool special : {false, true})
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, special), true), text)
          << testing::PrintToString(text);
  }
}

TEST(SentencePiece, UnknownCharactersWithoutBytesAreTheUnknownToken) {
  ToyPieces toy = toy_pieces();
  toy.types[3 + 0xE3] = TokenType::Unused;  // the first byte of the character below
  const Tokenizer tokenizer(toy.vocab());
  const int32_t space = tokenizer.find("▁"), e = tokenizer.find("e");
  EXPECT_THAT(tokenizer.encode("のe", false), ElementsAre(space, 0, e));
}

std::string error_of(const Vocab& vocab) {
  try {
    Tokenizer{vocab};
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SentencePiece, NamesWhatIsWrongWithAVocabulary) {
  ToyPieces toy = toy_pieces();
  Vocab vocab = toy.vocab();
  vocab.scores.pop_back();
  EXPECT_THAT(error_of(vocab), HasSubstr("297 scores for 298 tokens"));

  toy.tokens[3] = "<0xGG>";
  toy.scores.back() = std::nanf("");
  toy.add(std::string(2000, 'a'), 1);
  vocab = toy.vocab();
  vocab.unk = -1;
  const std::string message = error_of(vocab);
  for (const char* part :
       {"token 3: \"<0xGG>\" is of type byte", "token 297: its score is not a number",
        "token 298: 2000 bytes, expected at most 1024", "no token for 1 of 256 bytes and no unknown token"})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(SentencePiece, EqualPiecesKeepTheFirst) {
  ToyPieces toy;
  const int32_t first = toy.add("ab", 1);
  toy.add("ab", 9);
  const int32_t bc = toy.add("bc", 5);
  toy.add("\xFFx", 9);  // no text has it
  Vocab vocab = toy.vocab();
  vocab.space_in_front = false;
  const Tokenizer tokenizer(vocab);
  EXPECT_THAT(tokenizer.encode("ab", false), ElementsAre(first));
  EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(3 + 'a', bc));
}

TEST(SentencePiece, AMegabyteOfOneThingTakesLinearTime) {
  ToyPieces toy = toy_pieces();
  for (const std::string letter : {"a", "▁", "7", "!"})
    for (std::string run = letter; run.size() <= 48; run += run) toy.add(run, static_cast<float>(run.size()));
  toy.add("a▁", -50);
  const Tokenizer tokenizer(toy.vocab());
  double worst = 0;
  for (const std::string& unit : long_run_units()) {
    const std::string text = repeated(unit, 1 << 20);
    std::vector<int32_t> ids;
    const double took = seconds([&] { ids = tokenizer.encode(text, true); });
    EXPECT_LT(took, 2 * kSlowdown) << unit;
    EXPECT_TRUE(tokenizer.decode(ids, false) == text) << unit;
    worst = std::max(worst, took);
  }
  fmt::print("slowest: {:.3f} s\n", worst);
}

}  // namespace
}  // namespace sluice::text
