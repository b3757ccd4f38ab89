// Damaged and malicious files: every one must end in an Error that says what is wrong, never in a crash or a
// huge allocation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gguf/raw_file.h"

namespace sluice::gguf {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A sound small file with a bit of everything: 5 entries, 2 tensors, 192 bytes of data.
RawFile sound_file(uint32_t version = 3) {
  RawFile file;
  file.header(2, 5, version);
  file.text("general.architecture").number(ValueType::String).text("deepseek2");
  file.entry("general.alignment", ValueType::U32, uint32_t{32});
  file.entry("flag", ValueType::Bool, uint8_t{1});
  file.text("numbers").number(ValueType::Array).number(ValueType::I16).number<uint64_t>(3);
  file.number<int16_t>(-1).number<int16_t>(2).number<int16_t>(3);
  file.text("texts")
      .number(ValueType::Array)
      .number(ValueType::String)
      .number<uint64_t>(2)
      .text("a")
      .text("");
  file.tensor("norm", {32}, 0, 0);
  file.tensor("matrix", {32, 3}, 2, 128).data(128 + 64);
  return file;
}

TEST(Hostile, TheSoundFileIsSound) {
  EXPECT_EQ(parse_error(sound_file().bytes), "");
  EXPECT_EQ(parse_error(sound_file(2).bytes), "");
}

TEST(Hostile, CutAtEveryByte) {
  const std::string bytes = sound_file().bytes;
  // The last tensor takes 54 of its 64 bytes: what follows is padding, which may be missing.
  const size_t needed = bytes.size() - 10;
  for (size_t size = 0; size < needed; ++size) {
    EXPECT_THAT(parse_error(bytes.substr(0, size)), AllOf(StartsWith("m.gguf: "), Not(HasSubstr("\n"))))
        << size;
  }
  for (size_t size = needed; size < bytes.size(); ++size)
    EXPECT_EQ(parse_error(bytes.substr(0, size)), "") << size;
}

TEST(Hostile, EveryByteChanged) {
  const std::string bytes = sound_file().bytes;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      parse_error(changed);  // an Error or none; anything else ends the test program
    }
    for (const char value : {'\x00', '\x7F', '\xFF'}) {
      std::string changed = bytes;
      changed[at] = value;
      parse_error(changed);
    }
  }
}

struct Case {
  const char* name;
  RawFile file;
  const char* expected;
};

void expect_errors(const std::vector<Case>& cases) {
  for (const Case& one : cases) EXPECT_THAT(parse_error(one.file.bytes), HasSubstr(one.expected)) << one.name;
}

RawFile raw(const std::string& bytes) { return RawFile{bytes}; }
RawFile with_tensor(const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset, size_t data = 1024) {
  return RawFile().header(1, 0).tensor("t", shape, type, offset).data(data);
}
RawFile with_alignment(uint32_t alignment) {
  return RawFile().header(0, 1).entry("general.alignment", ValueType::U32, alignment);
}

TEST(Hostile, Headers) {
  expect_errors({
      {"empty", raw(""), "is no GGUF file: begins with \"\", expected \"GGUF\""},
      {"other", raw("PK\x03\x04 and more"), R"(is no GGUF file: begins with "PK\x03\x04", expected "GGUF")"},
      {"pointer", raw("version https://git-lfs.github.com/spec/v1\n"),
       "is no GGUF file but, it seems, a pointer of Git LFS"},
      {"short", raw("GG"), "is no GGUF file: begins with \"GG\""},
      {"version 1", RawFile().header(0, 0, 1), "has GGUF version 1, expected 2 or 3"},
      {"version 4", RawFile().header(0, 0, 4), "has GGUF version 4, expected 2 or 3"},
      {"big-endian", RawFile().header(0, 0, 0x03000000),
       "is a big-endian GGUF file; only little-endian ones"},
      {"entries", RawFile().header(0, 10000), "promises 10000 metadata entries; the 0 bytes"},
      {"tensors", RawFile().header(10000, 0), "promises 10000 tensors; the 0 bytes"},
      {"too many", RawFile().header(1, uint64_t{1} << 60),
       "promises 1152921504606846976 metadata entries and 1 tensors, expected at most 16384 and 65536"},
      {"most", RawFile().header(~uint64_t{0}, ~uint64_t{0}).data(999),
       "18446744073709551615 metadata entries"},
  });
}

TEST(Hostile, Metadata) {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  const auto entry = [](std::string_view key) { return RawFile().header(0, 1).text(key); };
  const auto array = [&](ValueType type, uint64_t count) {
    return entry("key").number(ValueType::Array).number(type).number(count).number<uint64_t>(0);
  };
  expect_errors({
      {"key length", RawFile().header(0, 1).number(kHuge).number<uint64_t>(0),
       "the file ends in metadata key 1 of 1: the key needs 1152921504606846976 bytes at byte 32, 8 are "
       "left"},
      {"key length -1", RawFile().header(0, 1).number(~uint64_t{0}).number<uint64_t>(0),
       "18446744073709551615 bytes"},
      {"empty key", entry("").number(ValueType::U8).number<uint8_t>(1),
       "metadata key 1 of 1: the key is empty"},
      {"value type", entry("key").number<uint32_t>(13).number<uint64_t>(0),
       "metadata key 1 of 1 (key): unknown value type 13"},
      {"string length", entry("key").number(ValueType::String).number(kHuge),
       "the file ends in metadata key 1 of 1 (key): the string needs 1152921504606846976 bytes at byte 47, 0 "
       "are left"},
      {"cut value", entry("key").number(ValueType::U64).number<uint32_t>(1),
       "the file ends in metadata key 1 of 1 (key): the value needs 8 bytes at byte 39, 4 are left"},
      {"bool", entry("key").number(ValueType::Bool).number<uint8_t>(7),
       "metadata key 1 of 1 (key): byte 7 is no bool"},
      {"array of u8", array(ValueType::U8, kHuge),
       "1152921504606846976 elements of type u8 do not fit into the 8 bytes"},
      {"array of f64", array(ValueType::F64, kHuge * 8), "elements of type f64 do not fit into the 8 bytes"},
      {"array of strings", array(ValueType::String, kHuge), "elements of type string do not fit"},
      {"array of arrays", array(ValueType::Array, 1),
       "metadata key 1 of 1 (key): arrays of arrays are not supported"},
      {"array of ?", array(static_cast<ValueType>(77), 1),
       "metadata key 1 of 1 (key): unknown value type 77"},
      {"twice",
       RawFile().header(0, 2).entry("key", ValueType::U8, uint8_t{1}).entry("key", ValueType::U8, uint8_t{2}),
       "metadata key key occurs twice"},
      {"alignment 0", with_alignment(0), "general.alignment is no power of two from 8 to 1048576"},
      {"alignment 4", with_alignment(4), "general.alignment is no power of two"},
      {"alignment 48", with_alignment(48), "general.alignment is no power of two"},
      {"alignment 2^31", with_alignment(1u << 31), "general.alignment is no power of two"},
  });
}

TEST(Hostile, Tensors) {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  const auto twice = [](std::string_view second, uint64_t offset) {
    return RawFile().header(2, 0).tensor("a", {32}, 0, 0).tensor(second, {32}, 0, offset).data(1024);
  };
  expect_errors({
      {"no dimensions", with_tensor({}, 0, 0), "tensor 1 of 1 (t): 0 dimensions, expected 1 to 4"},
      {"five", with_tensor({1, 1, 1, 1, 1}, 0, 0), "tensor 1 of 1 (t): 5 dimensions, expected 1 to 4"},
      {"empty", with_tensor({32, 0}, 0, 0), "tensor t: dimension 1 of its shape is 0, which is empty"},
      {"large", with_tensor({kHuge * 8}, 0, 0),
       "tensor t: dimension 0 of its shape is 9223372036854775808, which is too"},
      {"product", with_tensor({kHuge / 2, 1, 16}, 0, 0),
       "tensor t: dimension 2 of its shape is 16, which is too large"},
      {"rows", with_tensor({33, 32}, 2, 0), "tensor t: rows of 33 numbers, Q4_0 needs a multiple of 32"},
      {"type", with_tensor({32}, 4, 0), "tensor t: type id 4 is unknown"},
      {"other type", with_tensor({32}, 137, 0),
       "type id 137 is unknown (ids from 128 on are formats of ik_llama.cpp)"},
      {"offset", with_tensor({32}, 0, 16), "tensor t: offset 16 is no multiple of the alignment 32"},
      {"past the end", with_tensor({32}, 0, 4096),
       "the file is cut off: 1 of 1 tensors reach past its end, t first; it has 1024 bytes of tensor data, "
       "expected 4224"},
      {"far past", with_tensor({kHuge / 16}, 0, ~uint64_t{31}), "the file is cut off"},
      {"no data", RawFile().header(1, 0).tensor("t", {1}, 0, 0), "it has 0 bytes of tensor data, expected 4"},
      {"same name", twice("a", 128), "tensor a occurs twice"},
      {"no name", twice("", 128), "tensor 2 of 2: the name is empty"},
      {"overlap", twice("b", 96), "tensor b: its bytes overlap those of a"},
      {"same bytes", twice("b", 0), "tensor b: its bytes overlap those of a"},
  });
}

TEST(Hostile, AllProblemsAreListedAtOnce) {
  RawFile file;
  file.header(30, 0);
  for (int i = 0; i < 30; ++i) file.tensor(fmt::format("t{}", i), {32}, 99, 0);
  const std::string error = parse_error(file.data(64).bytes);
  EXPECT_THAT(error, StartsWith("m.gguf: 30 problems\n  tensor t0: type id 99 is unknown\n  tensor t1: "));
  EXPECT_THAT(error, HasSubstr("\n  and 10 more"));
}

TEST(Hostile, NamesCannotSteerTheTerminal) {
  const std::string error = parse_error(RawFile().header(1, 0).tensor("\x1b[2Jx\n\xff", {32}, 99, 0).bytes);
  EXPECT_THAT(error, HasSubstr(R"(tensor \x1b[2Jx\n\xff: type id 99 is unknown)"));
}

}  // namespace
}  // namespace sluice::gguf
