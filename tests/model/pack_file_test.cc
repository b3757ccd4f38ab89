// Packed weights as a file: it gives the logits of the model that it was made of, bit for bit, and whatever
// is wrong with it is an Error of one line.
#include "backend/cpu/pack_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "base/file.h"
#include "engine/kv_pool.h"
#include "engine/scorer.h"
#include "model/model.h"
#include "support/small_model.h"

namespace sluice::backend::cpu {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr size_t kPart = 65536, kChecksumAt = 16;

/// FNV-1a, as pack files are checked with.
uint64_t fnv(const std::string& bytes, uint64_t hash = 14695981039346656037u) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211u;
  return hash;
}

/// With a checksum of the header's part that is right.
std::string sealed(std::string bytes) {
  const std::string part = bytes.substr(0, kPart);
  const uint64_t sum = fnv(part.substr(kChecksumAt + 8), fnv(part.substr(0, kChecksumAt)));
  std::memcpy(bytes.data() + kChecksumAt, &sum, sizeof sum);
  return bytes;
}

class PackFileTest : public testing::Test {
 protected:
  PackFileTest()
      : folder_(std::filesystem::temp_directory_path() / ("sluice_pack_file_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~PackFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }

  /// A model that takes some parts. GLM-4.7-Flash's token table is read in the file's order alone,
  /// Youtu-LLM-2B's is the output matrix too.
  std::string write_model(const std::string& name = "glm-4.7-flash") const {
    gguf::SynthModel shape = test::small_model(name);
    shape.vocabulary = 4096;
    shape.width = shape.expert_width = shape.dense_width = 128;
    const gguf::SynthOptions options = {.model = &shape, .mix = gguf::find_synth_mix("q4_0")};
    gguf::write_synth(options, gguf::plan_synth(options), path("m.gguf"), [](uint64_t, uint64_t) {});
    return path("m.gguf");
  }

  static bool pack(const std::string& file, const std::string& out, int64_t modified_ns = 1) {
    const MappedFile mapped(file);
    const model::Model model = model::Model::load(gguf::File::parse(file, mapped.bytes()));
    const std::byte* head_end = mapped.bytes().data() + mapped.bytes().size();
    for (const gguf::Tensor& tensor : model.file.tensors())
      head_end = std::min(head_end, tensor.bytes.data());
    return write_packed({.threads = 2}, model.program, model.weights,
                        {mapped.bytes(), head_end - mapped.bytes().data(), modified_ns}, out, {});
  }
  std::string packed_bytes() const {
    pack(write_model(), path("m.pack"));
    return read_file(path("m.pack"));
  }

  static std::vector<float> logits_of(const model::Model& model, const CpuOptions& options) {
    const auto executable = make_cpu_backend(options)->compile(
        model.program, model.weights,
        {.max_rows = 8, .max_outputs = 8, .cache_pages = engine::KvPool::pages_for(16)});
    engine::Scorer scorer(*executable, 16, 8);
    const std::vector<int32_t> tokens = {5, 17, 256, 3, 99, 100, 7, 300, 12, 13};
    std::vector<float> all;
    scorer.run(tokens, 0,
               [&](int64_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
    return all;
  }
  static std::vector<float> run(const std::string& file) {
    const auto packed = std::make_shared<const PackFile>(file);
    const auto model = model::Model::load(gguf::File::parse(file, packed->original()));
    return logits_of(model, {.threads = 2, .packed = packed});
  }

  /// What is said of a file of these bytes; empty if it runs.
  std::string error_of(const std::string& bytes) const {
    std::ofstream(path("other"), std::ios::binary | std::ios::trunc) << bytes;
    try {
      run(path("other"));
      return "";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith(path("other") + ": "));
      return error.what();
    }
  }
  std::string refused(const std::string& bytes) const {
    const std::string error = error_of(bytes);
    EXPECT_NE(error, "");
    EXPECT_THAT(error, Not(HasSubstr("\n")));
    return error;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(PackFileTest, GivesTheModelsLogitsAtEveryTier) {
  ASSERT_TRUE(pack(write_model(), path("m.pack")));
  EXPECT_FALSE(std::filesystem::exists(path("m.pack.part")));
  const model::Model model = model::Model::load(path("m.gguf"));
  const auto packed = std::make_shared<const PackFile>(path("m.pack"));
  EXPECT_TRUE(PackFile::is_one(path("m.pack")));
  EXPECT_FALSE(PackFile::is_one(path("m.gguf")));
  const auto mapped = model::Model::load(gguf::File::parse("m.pack", packed->original()));
  for (const Isa isa : usable_isas()) {
    const auto expected = logits_of(model, {.threads = 1, .isa = isa});
    ASSERT_GT(expected.size(), 40'000u);
    EXPECT_EQ(logits_of(mapped, {.threads = 3, .isa = isa, .packed = packed}), expected) << isa_name(isa);
  }
}

TEST_F(PackFileTest, HoldsNoMoreThanTheModelAndSomeParts) {
  const std::string bytes = packed_bytes();
  EXPECT_LT(bytes.size(), std::filesystem::file_size(path("m.gguf")) * 103 / 100 + 8 * kPart);
}

TEST_F(PackFileTest, HoldsATokenTableOnceThatIsTheOutputMatrixToo) {
  ASSERT_TRUE(pack(write_model("youtu-llm-2b"), path("m.pack")));
  const model::Model model = model::Model::load(path("m.gguf"));
  const uint64_t table = model.file.tensor("token_embd.weight")->bytes.size(), slack = 4 * kPart;
  ASSERT_GT(table, 2 * slack);
  EXPECT_LT(std::filesystem::file_size(path("m.pack")), std::filesystem::file_size(path("m.gguf")) + slack);
  EXPECT_EQ(run(path("m.pack")), logits_of(model, {.threads = 1}));
}

TEST_F(PackFileTest, IsMadeAgainOnlyOfAnotherFile) {
  const std::string model = write_model();
  EXPECT_TRUE(pack(model, path("m.pack"), 1));
  EXPECT_FALSE(pack(model, path("m.pack"), 1));
  EXPECT_TRUE(pack(model, path("m.pack"), 2));
  EXPECT_FALSE(pack(model, path("m.pack"), 2));
  std::ofstream(path("m.pack"), std::ios::binary | std::ios::in).seekp(100) << 'x';
  EXPECT_TRUE(pack(model, path("m.pack"), 2));  // a damaged one is made again
  std::ofstream(path("m.pack"), std::ios::binary | std::ios::in).seekp(-100, std::ios::end) << "damage";
  EXPECT_TRUE(pack(model, path("m.pack"), 2));
}

TEST_F(PackFileTest, WhoeverHasTheOldOneMappedKeepsIt) {
  packed_bytes();
  const PackFile old(path("m.pack"));
  const std::vector<std::byte> before(old.original().begin(), old.original().end());
  ASSERT_TRUE(pack(path("m.gguf"), path("m.pack"), 2));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), old.original().begin()));
}

TEST_F(PackFileTest, AnyDamageOfTheHeaderIsTold) {
  const std::string whole = packed_bytes();
  ASSERT_EQ(error_of(whole), "");
  std::mt19937 random(1);
  for (size_t i = 0; i < 1000; ++i) {
    // Most of the part is filled up with zeroes: its beginning is looked at byte by byte.
    const size_t at = i < 200 ? i : random() % kPart;
    SCOPED_TRACE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    refused(damaged);
  }
}

TEST_F(PackFileTest, DamageOfTheMetadataIsTold) {
  const std::string whole = packed_bytes();
  for (size_t at = kPart; at < kPart + 3000; at += 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_THAT(refused(damaged), HasSubstr("is damaged (the model's metadata); pack the model again"));
  }
}

TEST_F(PackFileTest, EveryChangedByteIsFound) {
  const std::string whole = packed_bytes();
  uint32_t segments;
  uint64_t panels;
  std::memcpy(&segments, whole.data() + 12, sizeof segments);
  std::memcpy(&panels, whole.data() + 56, sizeof panels);
  const size_t panels_at = whole.size() - panels;
  Team team(2);
  std::mt19937_64 random(1);
  int early = 0;
  for (int i = 0; i < 200; ++i) {
    const size_t at = kPart + random() % (whole.size() - kPart);
    SCOPED_TRACE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    std::ofstream(path("m.pack"), std::ios::binary | std::ios::trunc) << damaged;
    std::string error;
    try {
      PackFile(path("m.pack")).verify(team);
    } catch (const Error& problem) {
      error = problem.what();
    }
    EXPECT_THAT(error, HasSubstr(" is damaged ("));
    if (at >= panels_at) continue;
    ++early;
    EXPECT_THROW(PackFile{path("m.pack")}, Error) << "what is no panel is checked at once";
  }
  EXPECT_GT(early, 10);
  std::ofstream(path("m.pack"), std::ios::binary | std::ios::trunc) << whole;
  EXPECT_NO_THROW(PackFile(path("m.pack")).verify(team));
}

TEST_F(PackFileTest, FilesCutShortOrGrownAreTold) {
  const std::string whole = packed_bytes();
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{79}, size_t{80}, kPart - 1, kPart,
                            kPart + 1, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(size);
    refused(whole.substr(0, size));
  }
  EXPECT_THAT(refused(whole + "x"), HasSubstr("is damaged (the file's size)"));
  EXPECT_THAT(refused(read_file(path("m.gguf"))), HasSubstr("is not a file of sluice pack"));
}

TEST_F(PackFileTest, AnotherVersionAndAnotherLayoutAreTold) {
  std::string bytes = packed_bytes();
  bytes[8] = 2;
  EXPECT_THAT(refused(sealed(bytes)), HasSubstr("version 2 of the format, expected 3; pack the model again"));
  bytes[8] = 3;
  bytes[64] = static_cast<char>(bytes[64] + 1);
  EXPECT_THAT(refused(sealed(bytes)), HasSubstr("was packed for another version of sluice or other kernels"));
}

TEST_F(PackFileTest, NumbersOfAForgedHeaderHaveToMakeSense) {
  const std::string whole = packed_bytes();
  uint32_t segments;
  std::memcpy(&segments, whole.data() + 12, sizeof segments);
  ASSERT_GE(segments, 2u);
  ASSERT_EQ(error_of(sealed(whole)), "");
  const uint64_t numbers[] = {0,
                              1,
                              kPart,
                              uint64_t{1} << 32,
                              (uint64_t{1} << 46) + kPart,
                              ~uint64_t{kPart} + 1,
                              ~uint64_t{0},
                              uint64_t{1} << 63,
                              0x7FFFFFFFFFFF0000u};
  // The GGUF file's size and its head's, the panels' size, the number of checksums, the first two segments'
  // beginnings and sizes. A larger GGUF file and a segment elsewhere may still make sense: then the model
  // runs, with zeroes for weights.
  for (const size_t at : {24u, 32u, 56u, 72u, 80u, 88u, 96u, 104u}) {
    for (const uint64_t number : numbers) {
      std::string forged = whole;
      uint64_t before;
      std::memcpy(&before, forged.data() + at, sizeof before);
      if (number == before) continue;
      std::memcpy(forged.data() + at, &number, sizeof number);
      SCOPED_TRACE(testing::Message() << number << " at " << at);
      const std::string error = error_of(sealed(forged));
      EXPECT_TRUE(error != "" || at == 24 || at == 96);
    }
  }
  for (const uint32_t number : {0u, 1u, segments + 1, 1000u, 0xFFFFFFFFu}) {
    std::string forged = whole;
    std::memcpy(forged.data() + 12, &number, sizeof number);
    EXPECT_NE(error_of(sealed(forged)), "") << number;
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
