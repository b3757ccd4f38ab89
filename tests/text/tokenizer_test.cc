// The tokenizer: merges against a definition in Python, special tokens, any bytes there and back, bad
// vocabularies, and the time that long texts and large vocabularies take.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "text/support.h"
#include "text/toy_vocab.h"

namespace sluice::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool special = true) {
  std::string out;
  for (const int32_t id : ids) out += tokenizer.bytes(id, special);
  return out;
}

/// Texts with no special token in them, from few characters so that merges abound.
std::string random_text(std::mt19937& random, std::string_view letters, size_t length) {
  std::string out;
  for (size_t i = 0; i < length; ++i) out += letters[random() % letters.size()];
  return out;
}

/// Encodes pieces, each of which is one piece for the pre-tokenizer too, and compares with the oracle.
void compare_with_oracle(const ToyVocab& vocab, const std::vector<std::string>& pieces) {
  const Tokenizer tokenizer(vocab.vocab());
  nlohmann::json input = {
      {"tokens", vocab.tokens}, {"merges", vocab.merges}, {"pieces", nlohmann::json::array()}};
  for (const std::string& piece : pieces) {
    std::vector<std::string> symbols;
    for (const char c : piece) symbols.push_back(byte_character(static_cast<uint8_t>(c)));
    input["pieces"].push_back(symbols);
  }
  const TemporaryFile file(input.dump());
  const auto lines = python_lines("bpe_oracle.py", file.path());
  ASSERT_EQ(lines.size(), pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<int32_t> expected = nlohmann::json::parse(lines[i]);
    ASSERT_EQ(tokenizer.encode(pieces[i], false), expected) << pieces[i];
  }
}

TEST(Tokenizer, TrainedMergesAgreeWithTheDefinition) {
  std::mt19937 random(1);
  std::vector<std::string> pieces;
  pieces.reserve(3020);
  for (int i = 0; i < 3000; ++i) pieces.push_back(random_text(random, "theawrilmsn", 1 + random() % 30));
  for (int i = 0; i < 20; ++i) pieces.push_back(random_text(random, "ah", 400));
  compare_with_oracle(toy_vocab(), pieces);
}

TEST(Tokenizer, RandomMergesAgreeWithTheDefinition) {
  // Merges in random order, so that one may come before the merges that make its parts.
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    ToyVocab vocab;
    std::vector<std::string> known = {"a", "b", "c"};
    for (int i = 0; i < 60; ++i) {
      const std::string left = known[random() % known.size()], right = known[random() % known.size()];
      if (left.size() + right.size() > 12) continue;
      vocab.merge(left, right);
      known.push_back(left + right);
    }
    std::shuffle(vocab.merges.begin(), vocab.merges.end(), random);
    std::vector<std::string> pieces;
    pieces.reserve(300);
    for (int i = 0; i < 300; ++i)
      pieces.push_back(random_text(random, i % 2 ? "abc" : "ab", 1 + random() % 60));
    compare_with_oracle(vocab, pieces);
  }
}

TEST(Tokenizer, SharedVocabulariesGiveTheirLists) {
  for (const std::string name : {"gpt-2", "deepseek-llm", "deepseek-coder"}) {
    const std::string path = shared_data("vocab/ggml-vocab-" + name + ".gguf");
    if (!std::ifstream(path)) GTEST_SKIP() << "no " + path;
    const auto lines = python_lines("vocab_dump.py", path);
    ASSERT_EQ(lines.size(), 1u);
    const auto dump = nlohmann::json::parse(lines[0]);
    const std::vector<std::string> tokens = dump.at("tokens"), merges = dump.at("merges");
    const std::vector<int> types = dump.at("types");
    Vocab vocab;
    vocab.model = "gpt2";
    vocab.pre = dump.at("pre");
    vocab.tokens.assign(tokens.begin(), tokens.end());
    for (const int type : types) vocab.types.push_back(static_cast<TokenType>(type));
    vocab.merges.assign(merges.begin(), merges.end());
    const Tokenizer tokenizer(vocab);

    const auto lists = shared_token_lists(path);
    EXPECT_EQ(lists.size(), 46u);
    for (const auto& [text, expected] : lists) {
      EXPECT_EQ(tokenizer.encode(text, false), expected) << name << ": " << text;
      EXPECT_EQ(decode(tokenizer, expected), text) << name;
    }
  }
}

TEST(Tokenizer, SpecialTokensAreTakenOutFirst) {
  const ToyVocab toy = toy_vocab();
  const Tokenizer tokenizer(toy.vocab());
  const int32_t user = tokenizer.find("<|user|>"), user_x = tokenizer.find("<|user|>x");
  const int32_t think = tokenizer.find("<think>"), unknown = tokenizer.find("<unk>");
  const int32_t a = tokenizer.find("a"), x = tokenizer.find("x");
  ASSERT_GE(user, 256);
  EXPECT_THAT(tokenizer.encode("<|user|>a<think><unk>", true), ElementsAre(user, a, think, unknown));
  EXPECT_THAT(tokenizer.encode("<|user|>x<|user|>a", true), ElementsAre(user_x, user, a)) << "longest first";
  EXPECT_THAT(tokenizer.encode("<think>x</think>", false), ElementsAre(think, x, tokenizer.find("</think>")))
      << "user-defined tokens count in any text";
  for (const char* text : {"<|user|>a", "<unk>", "<|user|", "<", "[PAD1]"}) {
    const auto ids = tokenizer.encode(text, false);
    for (const int32_t id : ids)
      EXPECT_TRUE(toy.types[id] == TokenType::Normal) << text << " must not become a control token";
    EXPECT_EQ(decode(tokenizer, ids, false), text);
  }
  EXPECT_THAT(tokenizer.encode("", true), ElementsAre());
  EXPECT_THAT(tokenizer.encode("<<|user|><|user|", true), testing::Contains(user));
}

TEST(Tokenizer, BytesShowControlTokensOnlyWhenAsked) {
  const ToyVocab toy = toy_vocab();
  const Tokenizer tokenizer(toy.vocab());
  for (const char* name : {"<|user|>", "<unk>", "[PAD1]"}) {
    EXPECT_EQ(tokenizer.bytes(tokenizer.find(name), true), name);
    EXPECT_EQ(tokenizer.bytes(tokenizer.find(name), false), "");
  }
  EXPECT_EQ(tokenizer.bytes(tokenizer.find("<think>"), false), "<think>");
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(tokenizer.bytes(byte, false), std::string(1, static_cast<char>(byte)));
  EXPECT_EQ(tokenizer.find("<no such token>"), -1);
  EXPECT_EQ(tokenizer.size(), static_cast<int32_t>(toy.tokens.size()));
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(5);
  const Tokenizer tokenizer(toy_vocab().vocab());
  const std::string_view parts[] = {"<|user|>",
                                    "<think",
                                    ">",
                                    "the wheel",
                                    "  ",
                                    "\n",
                                    "\xE6\xB0\xB4",
                                    "\xE6\xB0",
                                    "123",
                                    "\xFF",
                                    "\xC0",
                                    "\xF4\x90\x80\x80",
                                    "'s",
                                    std::string_view("\0", 1)};
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) {
      if (random() % 3 == 0) {
        text += static_cast<char>(random() % 256);
      } else {
        text += parts[random() % std::size(parts)];
      }
    }
    for (const bool special : {false, true})
      ASSERT_EQ(decode(tokenizer, tokenizer.encode(text, special)), text) << testing::PrintToString(text);
  }
}

TEST(Tokenizer, BytesThatNoTextHasMayLackTokens) {
  // As in DeepSeek's files: the letter of F6 is a token of its own, and the byte has none.
  ToyVocab toy;
  toy.types[0xF6] = TokenType::UserDefined;
  toy.tokens[0xFF] = "unused";
  const Tokenizer tokenizer(toy.vocab());
  EXPECT_EQ(tokenizer.bytes(0xF6, false), "\u00f6");
  EXPECT_THAT(tokenizer.encode("\u00f6", false), ElementsAre(0xF6));
  EXPECT_EQ(decode(tokenizer, tokenizer.encode("a\xF6z\xFF", false)), "a\uFFFDz\uFFFD");
}

TEST(Tokenizer, BytesThatTheTextsOfAVocabularyHadNotArePassedOver) {
  // As in SmolLM2's: trained on texts alone, so some control characters have no token, nor do planes 4 to 11.
  // What is left and right of such a byte merges, as Hugging Face's tokenizers do it.
  ToyVocab toy;
  for (const int byte : {0x04, 0x1D, 0xF1, 0xF2, 0xBF}) toy.tokens[byte] = "unused" + std::to_string(byte);
  toy.merge("!", "!");
  const auto pair = static_cast<int32_t>(toy.tokens.size() - 1);
  const Tokenizer tokenizer(toy.vocab());
  EXPECT_THAT(tokenizer.encode("!\x04!", false), ElementsAre(pair));
  EXPECT_THAT(tokenizer.encode("\x04\x1D", false), ElementsAre());
  EXPECT_EQ(decode(tokenizer, tokenizer.encode("a\x1D"
                                               "b\x05",
                                               false)),
            "ab\x05");
  EXPECT_THAT(tokenizer.encode("\U00050000", false), ElementsAre(0x90, 0x80, 0x80));
  EXPECT_THAT(tokenizer.encode("\uFFFD", false), ElementsAre(0xEF, 0xBD));
}

TEST(Tokenizer, EndsGenerationByIdAndByName) {
  ToyVocab toy = toy_vocab();
  const int32_t plain = toy.add("</s>", TokenType::Normal);
  Vocab vocab = toy.vocab();
  vocab.eos = 'a';
  vocab.eot = 'b';
  vocab.eom = 'c';
  const Tokenizer tokenizer(vocab);
  for (const char* name : {"a", "b", "c", "<|endoftext|>", "<|user|>", "<|observation|>"})
    EXPECT_TRUE(tokenizer.ends_generation(tokenizer.find(name))) << name;
  for (const char* name : {"d", "<think>", "[gMASK]", "<|user|>x"})
    EXPECT_FALSE(tokenizer.ends_generation(tokenizer.find(name))) << name;
  EXPECT_FALSE(tokenizer.ends_generation(plain)) << "a normal token is text";
  EXPECT_FALSE(tokenizer.ends_generation(-1));
  EXPECT_FALSE(tokenizer.ends_generation(tokenizer.size()));
}

TEST(Tokenizer, WholePiecesIgnoreMergesOnlyWhereTheRowSaysSo) {
  ToyVocab toy;
  const int32_t whole = toy.add("xyz", TokenType::Normal);  // no merge makes it
  toy.add("xyq", TokenType::Control);
  EXPECT_THAT(Tokenizer(toy.vocab()).encode("xyz", false), ElementsAre('x', 'y', 'z'));
  toy.pre = "llama-bpe";
  EXPECT_THAT(Tokenizer(toy.vocab()).encode("xyz", false), ElementsAre(whole));
  EXPECT_THAT(Tokenizer(toy.vocab()).encode("xyq", false), ElementsAre('x', 'y', 'q'));
}

TEST(Tokenizer, TextThatIsNoAlphabetStandsForItself) {
  ToyVocab toy;
  const int32_t id = toy.add("\u4e2d x", TokenType::Normal);
  EXPECT_EQ(Tokenizer(toy.vocab()).bytes(id, false), "\u4e2d x");
}

std::string error_of(const Vocab& vocab) {
  try {
    Tokenizer{vocab};
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tokenizer, NamesAllThatIsWrongWithAVocabulary) {
  ToyVocab toy = toy_vocab();
  toy.merges.insert(toy.merges.end(), {"nospace", "nope a", "a q", "x "});
  toy.tokens['a'] = "gone";
  toy.types.push_back(TokenType::Normal);
  toy.types[3] = static_cast<TokenType>(9);
  Vocab vocab = toy.vocab();
  vocab.eos = 1 << 20;
  vocab.bos = -2;
  vocab.add_bos = true;
  vocab.merges.assign(toy.merges.end() - 4, toy.merges.end());
  const std::string message = error_of(vocab);
  for (const char* part :
       {"tokenizer: 13 problems", "token types for", "eos token: id 1048576, expected 0 to",
        "bos token: id -2", "add_bos is set, but there is no bos token",
        "no token for 1 of the 96 bytes of plain text: 61", "token 3: type 9",
        "merge 0: \"nospace\": expected two tokens", "merge 1: \"nope a\": \"nope\" is not a token",
        "merge 2: \"a q\": \"aq\" is not a token"})
    EXPECT_THAT(message, HasSubstr(part));
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  ToyVocab toy;
  Vocab vocab = toy.vocab();
  vocab.model = "rwkv";
  EXPECT_THAT(error_of(vocab), HasSubstr("tokenizer model \"rwkv\" is not supported"));
  vocab = toy.vocab();
  vocab.pre = "nonsense";
  EXPECT_THAT(error_of(vocab), HasSubstr("pre-tokenizer \"nonsense\" is unknown"));
  vocab = toy.vocab();
  vocab.tokens.clear();
  EXPECT_THAT(error_of(vocab), HasSubstr("0 tokens"));
  vocab = toy.vocab();
  vocab.tokens.resize(3);
  vocab.types.clear();
  EXPECT_THAT(error_of(vocab), HasSubstr("no token for 96 of the 96 bytes of plain text: 0A 20 21"));
}

TEST(Tokenizer, EqualTokensAndMergesKeepTheFirst) {
  ToyVocab toy;
  toy.merge("a", "b");
  const auto first = static_cast<int32_t>(toy.tokens.size() - 1);
  toy.add("ab", TokenType::Normal);
  toy.merge("b", "c");
  toy.merges.push_back("a b");
  const Tokenizer tokenizer(toy.vocab());
  EXPECT_EQ(tokenizer.find("ab"), first);
  EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(first, 'c'));
}

TEST(Tokenizer, IsTheSameFromManyThreads) {
  const Tokenizer tokenizer(toy_vocab().vocab());
  const std::string text = repeated("the wheel hums, <think> 12345 \n", 20000);
  const auto expected = tokenizer.encode(text, true);
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  threads.reserve(got.size());
  for (auto& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text, true); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_TRUE(ids == expected);
}

TEST(Tokenizer, AMegabyteOfOneThingTakesLinearTime) {
  // Merges of every length, so that a run of one letter is one piece with a million merges in it.
  ToyVocab toy = toy_vocab();
  for (const std::string letter : {"a", "\u0120", "7", "\u010a", "!"})
    for (std::string run = letter; run.size() < 64; run += run) toy.merge(run, run);
  for (int i = 0; i < 200; ++i)
    toy.add(std::string(1 + i % 20, '<') + std::to_string(i), TokenType::UserDefined);
  const Tokenizer tokenizer(toy.vocab());
  std::vector<std::string> units = long_run_units();
  units.insert(units.end(), {"<", "<|", "<|user|", "<<<<", "<think>"});
  double worst = 0;
  std::string worst_unit;
  for (const std::string& unit : units) {
    const std::string text = repeated(unit, 1 << 20);
    std::vector<int32_t> ids;
    const double took = seconds([&] { ids = tokenizer.encode(text, true); });
    EXPECT_LT(took, 2 * kSlowdown) << unit;
    EXPECT_TRUE(decode(tokenizer, ids) == text) << unit;
    if (took > worst) worst = took, worst_unit = unit;
  }
  fmt::print("slowest: {:.3f} s, \"{}\"\n", worst, worst_unit);
}

TEST(Tokenizer, ALargeVocabularyLoadsFast) {
  // As many tokens and merges as GLM's: every token of letters in base 20 from its two ways to be halved.
  std::vector<std::string> tokens, merges;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte_character(static_cast<uint8_t>(byte)));
  const std::string letters = "abcdefghijklmnopqrst";
  for (const char a : letters)
    for (const char b : letters) tokens.push_back({a, b}), merges.push_back(std::string{a, ' ', b});
  for (const char a : letters)
    for (const char b : letters)
      for (const char c : letters) {
        tokens.push_back({a, b, c});
        merges.push_back({a, b, ' ', c});
        merges.push_back({a, ' ', b, c});
      }
  for (int i = 0; tokens.size() < 150000; ++i) {
    const std::string left = tokens[656 + i / 20];
    const char last = letters[i % 20];
    tokens.push_back(left + last);
    merges.push_back(left + ' ' + last);
    merges.push_back(left.substr(0, 1) + ' ' + left.substr(1) + last);
  }
  Vocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "glm4";
  vocab.tokens.assign(tokens.begin(), tokens.end());
  vocab.merges.assign(merges.begin(), merges.end());
  double best = 1e9;
  for (int i = 0; i < 3; ++i) best = std::min(best, seconds([&] { Tokenizer{vocab}; }));
  fmt::print("{} tokens, {} merges: {:.3f} s\n", tokens.size(), merges.size(), best);
  EXPECT_LT(best, 0.5 * kSlowdown);

  std::mt19937 random(2);
  std::string text;
  while (text.size() < 1 << 20) text += random_text(random, letters, 1 + random() % 9) + ' ';
  const Tokenizer tokenizer(vocab);
  std::vector<int32_t> ids;
  const double took = seconds([&] { ids = tokenizer.encode(text, true); });
  fmt::print("1 MiB of random words: {} tokens in {:.3f} s\n", ids.size(), took);
  EXPECT_TRUE(decode(tokenizer, ids) == text);
}

}  // namespace
}  // namespace sluice::text
