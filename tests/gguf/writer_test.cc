// Writer against reader, and writing that goes wrong.
#include "gguf/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "gguf/raw_file.h"

namespace sluice::gguf {
namespace {

using quant::Type;

const WritePlan& small_plan() {
  static const WritePlan plan = {{{"key", std::string("value")}, {"general.alignment", uint32_t{64}}},
                                 {{"first", Type::Q8_0, {32, 5}},
                                  {"second", Type::F32, {3}},
                                  {"third", Type::Q4_0, {32, 2, 2, 2}},
                                  {"large", Type::F16, {1024, 300}}}};
  return plan;
}

/// The bytes of tensor `index`: recognisable.
std::vector<std::byte> content(size_t index) {
  std::vector<std::byte> bytes(static_cast<size_t>(small_plan().tensors[index].bytes()));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + index);
  return bytes;
}

TEST(Writer, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.gguf";
  for (const size_t piece : {size_t{1}, size_t{100}, size_t{70000}, size_t{1} << 30}) {
    Writer writer(path, small_plan());
    for (size_t i = 0; i < small_plan().tensors.size(); ++i) {
      const auto bytes = content(i);
      for (size_t at = 0; at < bytes.size(); at += piece) {
        writer.write(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
      }
    }
    writer.finish();
    const File file = File::open(path);
    EXPECT_EQ(file.size_bytes(), small_plan().file_bytes());
    EXPECT_EQ(file.alignment(), 64u);
    ASSERT_EQ(file.tensors().size(), small_plan().tensors.size());
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const Tensor& tensor = file.tensors()[i];
      const WriteTensor& planned = small_plan().tensors[i];
      EXPECT_EQ(tensor.name, planned.name);
      EXPECT_EQ(tensor.type, planned.type);
      EXPECT_EQ(tensor.count(), planned.count());
      EXPECT_EQ(static_cast<size_t>(tensor.dimensions), planned.shape.size());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % 64, 0u);
      EXPECT_TRUE(std::ranges::equal(tensor.bytes, content(i))) << tensor.name;
    }
  }
}

TEST(Writer, AnUnfinishedFileIsRemoved) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.gguf";
  {
    Writer writer(path, small_plan());
    writer.write(content(0));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Writer, NamesThePathOfWhatItCannotWrite) {
  try {
    const Writer writer("/nowhere/m.gguf", small_plan());
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/nowhere/m.gguf: No such file or directory");
  }
}

TEST(Writer, AFullDiskIsAnErrorAndDevicesStay) {
  const auto write_all = [] {
    Writer writer("/dev/full", small_plan());
    for (size_t i = 0; i < small_plan().tensors.size(); ++i) writer.write(content(i));
    writer.finish();
  };
  try {
    write_all();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/dev/full: No space left on device");
  }
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST(WriterDeath, WrongByteCountsAreBugs) {
  const TemporaryFolder folder;
  EXPECT_DEATH(Writer(folder / "m.gguf", small_plan()).finish(), "0 of 4 tensors written");
  const std::vector<std::byte> many(171);
  EXPECT_DEATH(Writer(folder / "m.gguf", small_plan()).write(many), "tensor 0");
}

}  // namespace
}  // namespace sluice::gguf
