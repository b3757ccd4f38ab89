// Reading what a file holds: every kind of value, look-ups, and text made safe to print.
#include "gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>

#include "gguf/raw_file.h"
#include "gguf/writer.h"

namespace sluice::gguf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

/// Keys of every type, written by Writer. Added one by one: one long list of variants takes compilers
/// gigabytes.
const std::vector<WriteEntry>& all_kinds() {
  static const std::vector<WriteEntry> entries = [] {
    std::vector<WriteEntry> list;
    const auto add = [&list](const char* key, WriteValue value) { list.push_back({key, std::move(value)}); };
    add("u8", uint8_t{200});
    add("i8", int8_t{-100});
    add("u16", uint16_t{60000});
    add("i16", int16_t{-30000});
    add("u32", uint32_t{4000000000});
    add("i32", int32_t{-2000000000});
    add("f32", 1.5f);
    add("true", true);
    add("false", false);
    add("string", std::string("text with \0 inside", 18));
    add("u64", std::numeric_limits<uint64_t>::max());
    add("i64", std::numeric_limits<int64_t>::min());
    add("f64", 0.1);
    add("u8s", std::vector<uint8_t>{1, 2, 255});
    add("i8s", std::vector<int8_t>{-1, 2});
    add("u16s", std::vector<uint16_t>{1, 65535});
    add("i16s", std::vector<int16_t>{-1, 2});
    add("u32s", std::vector<uint32_t>{1, 4000000000});
    add("i32s", std::vector<int32_t>{-1, 2});
    add("f32s", std::vector<float>{0.5f, -2.0f});
    add("bools", std::vector<bool>{true, false, true});
    add("strings", std::vector<std::string>{"a", "", "ccc"});
    add("u64s", std::vector<uint64_t>{1, std::numeric_limits<uint64_t>::max()});
    add("i64s", std::vector<int64_t>{-1, 2});
    add("f64s", std::vector<double>{0.25, 1e300});
    add("nothing", std::vector<int32_t>{});
    return list;
  }();
  return entries;
}

class AllKinds : public testing::Test {
 protected:
  static File written(const std::string& path) {
    Writer writer(path, {all_kinds(), {}});
    writer.finish();
    return File::open(path);
  }
  TemporaryFolder folder_;
  File file_ = written(folder_ / "kinds.gguf");
};

TEST_F(AllKinds, KeysKeepTheirOrderAndTypes) {
  ASSERT_EQ(file_.metadata().size(), all_kinds().size());
  for (size_t i = 0; i < all_kinds().size(); ++i) EXPECT_EQ(file_.metadata()[i].key, all_kinds()[i].key);
  EXPECT_EQ(file_.find("u8")->type, ValueType::U8);
  EXPECT_EQ(file_.find("f64")->type, ValueType::F64);
  EXPECT_EQ(file_.find("strings")->type, ValueType::Array);
  EXPECT_EQ(file_.find("string2"), nullptr);
  EXPECT_EQ(file_.version(), 3u);
  EXPECT_EQ(file_.alignment(), 32u);
}

TEST_F(AllKinds, ScalarsOfEveryWidth) {
  EXPECT_THAT(file_.integer("u8"), Optional(200));
  EXPECT_THAT(file_.integer("i8"), Optional(-100));
  EXPECT_THAT(file_.integer("u16"), Optional(60000));
  EXPECT_THAT(file_.integer("i16"), Optional(-30000));
  EXPECT_THAT(file_.integer("u32"), Optional(4000000000));
  EXPECT_THAT(file_.integer("i32"), Optional(-2000000000));
  EXPECT_THAT(file_.integer("i64"), Optional(std::numeric_limits<int64_t>::min()));
  EXPECT_EQ(std::get<uint64_t>(file_.find("u64")->value), std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(file_.number("f32"), Optional(1.5));
  EXPECT_THAT(file_.number("f64"), Optional(0.1));
  EXPECT_THAT(file_.number("i8"), Optional(-100.0));
  EXPECT_THAT(file_.number("u64"), Optional(18446744073709551615.0));
  EXPECT_THAT(file_.boolean("true"), Optional(true));
  EXPECT_THAT(file_.boolean("false"), Optional(false));
  EXPECT_THAT(file_.boolean("u8"), Optional(true));
  EXPECT_THAT(file_.string("string"), Optional(std::string_view("text with \0 inside", 18)));
}

TEST_F(AllKinds, ArraysOfEveryWidth) {
  EXPECT_THAT(file_.integers("u8s"), Optional(ElementsAre(1, 2, 255)));
  EXPECT_THAT(file_.integers("i8s"), Optional(ElementsAre(-1, 2)));
  EXPECT_THAT(file_.integers("u16s"), Optional(ElementsAre(1, 65535)));
  EXPECT_THAT(file_.integers("i16s"), Optional(ElementsAre(-1, 2)));
  EXPECT_THAT(file_.integers("u32s"), Optional(ElementsAre(1, 4000000000)));
  EXPECT_THAT(file_.integers("i32s"), Optional(ElementsAre(-1, 2)));
  EXPECT_THAT(file_.integers("i64s"), Optional(ElementsAre(-1, 2)));
  EXPECT_THAT(file_.integers("nothing"), Optional(ElementsAre()));
  EXPECT_THAT(file_.numbers("f32s"), Optional(ElementsAre(0.5, -2.0)));
  EXPECT_THAT(file_.numbers("f64s"), Optional(ElementsAre(0.25, 1e300)));
  EXPECT_THAT(file_.numbers("i8s"), Optional(ElementsAre(-1.0, 2.0)));
  EXPECT_THAT(file_.strings("strings"), Optional(ElementsAre("a", "", "ccc")));
  EXPECT_EQ(elements(std::get<Array>(file_.find("bools")->value), 2).size(), 2u);
  EXPECT_TRUE(std::get<bool>(elements(std::get<Array>(file_.find("bools")->value), 9).at(2)));
}

TEST_F(AllKinds, MissingKeysAreNoErrorsButOtherKindsAre) {
  EXPECT_EQ(file_.integer("none"), std::nullopt);
  EXPECT_EQ(file_.strings("none"), std::nullopt);
  const auto error = [](auto read) -> std::string {
    try {
      read();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error([&] { file_.integer("string"); }),
            file_.path() + ": string is of type string, expected an integer");
  EXPECT_THAT(error([&] { file_.integer("f32"); }), HasSubstr("f32 is of type f32, expected an integer"));
  EXPECT_THAT(error([&] { file_.integer("u64"); }),
              HasSubstr("u64 is u64 18446744073709551615, expected an integer"));
  EXPECT_THAT(error([&] { file_.integer("u8s"); }),
              HasSubstr("u8s is an array of 3 u8, expected an integer"));
  EXPECT_THAT(error([&] { file_.integers("u64s"); }),
              HasSubstr("u64s is an array of 2 u64, expected an array of int"));
  EXPECT_THAT(error([&] { file_.number("true"); }), HasSubstr("true is of type bool, expected a number"));
  EXPECT_THAT(error([&] { file_.boolean("f32"); }), HasSubstr("f32 is of type f32, expected a bool"));
  EXPECT_THAT(error([&] { file_.string("u8"); }), HasSubstr("u8 is u8 200, expected a string"));
  EXPECT_THAT(error([&] { file_.strings("f32s"); }),
              HasSubstr("f32s is an array of 2 f32, expected an array of str"));
  EXPECT_THAT(error([&] { file_.strings("string"); }), HasSubstr("expected an array of strings"));
}

TEST(Gguf, OpensFilesAndNamesThem) {
  EXPECT_THROW(File::open("/nowhere/m.gguf"), Error);
  const TemporaryFolder folder;
  try {
    File::open(folder / "");
    FAIL() << "a folder is no file";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a directory, expected a regular file"));
  }
}

TEST(Gguf, AnyIntegerTypeMayGiveTheAlignment) {
  RawFile raw;
  raw.header(1, 1).entry("general.alignment", ValueType::I64, int64_t{64}).tensor("t", {8}, 0, 64);
  raw.bytes.resize((raw.bytes.size() + 63) / 64 * 64 + 64 + 32);
  const File file = File::parse("m", std::as_bytes(std::span(raw.bytes)));
  EXPECT_EQ(file.alignment(), 64u);
  EXPECT_EQ(file.tensor("t")->bytes.data() - reinterpret_cast<const std::byte*>(raw.bytes.data()),
            static_cast<std::ptrdiff_t>(raw.bytes.size() - 32));
}

TEST(Gguf, KnownTypesWithoutCodecAreFine) {
  const RawFile raw = RawFile().header(1, 0).tensor("t", {256, 2}, 16, 0).data(132);
  const File file = File::parse("m", std::as_bytes(std::span(raw.bytes)));
  EXPECT_EQ(file.tensor("t")->type, quant::Type::IQ2_XXS);
  EXPECT_EQ(file.tensor("t")->bytes.size(), 132u);
  EXPECT_EQ(shape_text(*file.tensor("t")), "[256, 2]");
  EXPECT_EQ(file.tensor("u"), nullptr);
}

TEST(Gguf, LongVocabulariesOpenFast) {
  std::vector<std::string> tokens;
  tokens.reserve(150000);
  for (int i = 0; i < 150000; ++i) tokens.push_back("token" + std::to_string(i));
  const TemporaryFolder folder;
  const std::string path = folder / "vocabulary.gguf";
  Writer(path, {{{"tokenizer.ggml.tokens", tokens}, {"tokenizer.ggml.merges", tokens}}, {}}).finish();
  const std::clock_t begin = std::clock();  // processor time: a busy machine does not make it fail
  const File file = File::open(path);
  const double milliseconds = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(file.strings("tokenizer.ggml.tokens")->back(), "token149999");
  EXPECT_LT(milliseconds, 500) << "2 ms on a quiet machine";
}

TEST(Printable, EscapesWhatSteersTerminals) {
  EXPECT_EQ(printable("plain ä 世界 🙂"), "plain ä 世界 🙂");
  EXPECT_EQ(printable("a\nb\tc\rd\x1b[31m\x7f"), R"(a\nb\tc\rd\x1b[31m\x7f)");
  EXPECT_EQ(printable(std::string_view("\0", 1)), R"(\x00)");
  EXPECT_EQ(printable("\xc2\x9b 31m"), R"(\x9b 31m)");  // the one-character form of ESC [
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            R"(a\u202eb)");                                                 // right-to-left override
  EXPECT_EQ(printable("\xff\xc3(\xe2\x82"), R"(\xff\xc3(\xe2\x82)");        // no UTF-8
  EXPECT_EQ(printable("\xc0\x80\xed\xa0\x80"), R"(\xc0\x80\xed\xa0\x80)");  // overlong, surrogate
}

TEST(Printable, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde...");
  EXPECT_EQ(printable("abcdä", 5), "abcd...");
}

}  // namespace
}  // namespace sluice::gguf
