// Models in several files: the first part opens all of them, and everything that is wrong with the others is
// named at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gguf/raw_file.h"
#include "gguf/writer.h"

namespace sluice::gguf {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint16_t kCount = 4;

/// What one part says of itself and holds.
struct Part {
  uint16_t number;  ///< from 1 on
  std::vector<std::string> tensors;
  uint16_t count = kCount;
  int32_t all_tensors = 3;
};

std::string part_name(int number, int count = kCount) {
  return fmt::format("m-{:05d}-of-{:05d}.gguf", number, count);
}

void write_part(const std::string& path, const Part& part) {
  WritePlan plan;
  if (part.number == 1) plan.metadata.push_back({"general.name", std::string("split")});
  plan.metadata.push_back({"split.no", static_cast<uint16_t>(part.number - 1)});
  plan.metadata.push_back({"split.count", part.count});
  plan.metadata.push_back({"split.tensors.count", part.all_tensors});
  for (const std::string& name : part.tensors) plan.tensors.push_back({name, quant::Type::F32, {8}});
  Writer writer(path, plan);
  for (const std::string& name : part.tensors) {
    writer.write(std::vector<std::byte>(32, static_cast<std::byte>(name[0])));
  }
  writer.finish();
}

/// Four parts, the first without tensors, as they are met.
class SplitTest : public testing::Test {
 protected:
  SplitTest() { write({1, {}}), write({2, {"a"}}), write({3, {"b"}}), write({4, {"c"}}); }
  void write(const Part& part) { write_part(folder_ / part_name(part.number), part); }
  std::string error_of(const std::string& name) const {
    try {
      File::open(folder_ / name);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string first_error() const { return error_of(part_name(1)); }

  TemporaryFolder folder_;
};

TEST_F(SplitTest, TheFirstPartOpensAll) {
  const File file = File::open(folder_ / part_name(1));
  EXPECT_EQ(file.parts(), 4u);
  EXPECT_EQ(file.string("general.name"), "split");
  ASSERT_EQ(file.tensors().size(), 3u);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_NE(file.tensor(name), nullptr) << name;
    EXPECT_EQ(file.tensor(name)->bytes.size(), 32u);
    EXPECT_EQ(file.tensor(name)->bytes[31], static_cast<std::byte>(name[0])) << "read from another part";
  }
  uint64_t bytes = 0;
  for (int i = 1; i <= 4; ++i) bytes += std::filesystem::file_size(folder_ / part_name(i));
  EXPECT_EQ(file.size_bytes(), bytes);
}

TEST_F(SplitTest, ThePartsOutliveAMove) {
  File moved = File::open(folder_ / part_name(1));
  const File file = std::move(moved);
  EXPECT_EQ(file.tensor("c")->bytes[0], static_cast<std::byte>('c'));
  EXPECT_EQ(file.tensor("c")->name, "c");
}

TEST_F(SplitTest, AnotherPartNamesTheFirst) {
  EXPECT_THAT(error_of(part_name(3)),
              HasSubstr("is part 3 of 4 of a split model; open the first part, " + (folder_ / part_name(1))));
}

TEST_F(SplitTest, MissingAndDamagedPartsAreNamedTogether) {
  std::filesystem::remove(folder_ / part_name(2));
  std::ofstream(folder_ / part_name(4)) << "GGUF";
  EXPECT_THAT(first_error(), AllOf(HasSubstr("2 problems"), HasSubstr(part_name(2) + ": No such file"),
                                   HasSubstr(part_name(4) + ": "), Not(HasSubstr(part_name(3)))));
}

TEST_F(SplitTest, APartOfAnotherPlaceOrModelIsNamed) {
  std::filesystem::copy_file(folder_ / part_name(4), folder_ / part_name(2),
                             std::filesystem::copy_options::overwrite_existing);
  write({3, {"b"}, 7});
  EXPECT_THAT(first_error(),
              AllOf(HasSubstr(part_name(2) + ": says that it is part 4 of 4, expected 2 of 4"),
                    HasSubstr(part_name(3) + ": says that it is part 3 of 7, expected 3 of 4")));
}

TEST_F(SplitTest, ATensorOfTwoPartsIsNamed) {
  write({3, {"a"}});
  EXPECT_THAT(first_error(), HasSubstr("tensor a occurs twice"));
}

TEST_F(SplitTest, TheTensorsAreCounted) {
  write({3, {}});
  EXPECT_THAT(first_error(), HasSubstr("the parts have 2 tensors, expected 3"));
}

TEST_F(SplitTest, AFirstPartOfAnotherNameCannotFindTheOthers) {
  std::filesystem::rename(folder_ / part_name(1), folder_ / "renamed.gguf");
  EXPECT_THAT(error_of("renamed.gguf"), HasSubstr("its name must end in -00001-of-00004.gguf"));
}

TEST_F(SplitTest, TheCountIsBounded) {
  write({1, {}, 60000});
  EXPECT_THAT(first_error(), HasSubstr("split.count is 60000, expected at most 1024"));
}

TEST_F(SplitTest, OnePartIsAWholeFile) {
  write_part(folder_ / "whole.gguf", {1, {"a"}, 1, 1});
  EXPECT_EQ(File::open(folder_ / "whole.gguf").parts(), 1u);
}

}  // namespace
}  // namespace sluice::gguf
