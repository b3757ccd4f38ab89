// The loader's fuzz target without a fuzzer: its corpus, and a small file damaged everywhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <span>

#include "model/model.h"
#include "support/small_model.h"

extern "C" int loader_fuzz(const uint8_t* data, size_t size);

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

void load(const std::string& bytes) {
  loader_fuzz(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

TEST(Loader, ItsCorpusDoesNoHarm) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/loader")) {
    SCOPED_TRACE(entry.path());
    load(read_file(entry.path()));
    ++files;
  }
  EXPECT_GE(files, 3);
}

std::string bytes_of_small_model(const char* name, bool prediction) {
  const fs::path path = fs::temp_directory_path() / ("sluice_damaged_" + std::to_string(::getpid()));
  write_small_model(name, "q4_0", path, prediction);
  std::string bytes = read_file(path);
  fs::remove(path);
  return bytes;
}

/// Three changes of the byte at a place, one after the other.
void load_damaged(std::string& bytes, size_t at) {
  const char before = bytes[at];
  for (const int flip : {0x01, 0x80, 0xFF}) {
    bytes[at] = static_cast<char>(before ^ flip);
    load(bytes);  // anything but an Error or none ends the test program
  }
  bytes[at] = before;
}

class DamagedModel : public testing::TestWithParam<const char*> {
 protected:
  DamagedModel() : bytes_(bytes_of_small_model(GetParam(), false)) {}

  std::string bytes_;
};

TEST_P(DamagedModel, WithAnyByteChangedGivesAnErrorOrRuns) {
  // Every byte of the facts and the list of tensors; of the vocabulary's strings and the weights, samples.
  const size_t tokens = bytes_.find("tokenizer.ggml.tokens") + 64;
  const size_t types = bytes_.find("tokenizer.ggml.token_type"), weights = bytes_.rfind(".weight") + 64;
  ASSERT_TRUE(tokens < types && types < weights);
  const auto step = [&](size_t at) { return (at > tokens && at < types) || at > weights ? 11 : 1; };
  for (size_t at = 0; at < bytes_.size(); at += step(at)) load_damaged(bytes_, at);
}

TEST_P(DamagedModel, OfNothingButNaNStillRuns) {
  const size_t data = bytes_.size() * 2 / 3;  // what lies there is weights
  for (const char byte : {'\xFF', '\x7F'}) {
    std::string spoilt = bytes_;
    std::fill(spoilt.begin() + static_cast<std::ptrdiff_t>(data), spoilt.end(), byte);
    load(spoilt);
  }
}

TEST(Loader, ABlockOfPredictionWithAnyByteOfItsTensorsChangedDoesNoHarm) {
  std::string bytes = bytes_of_small_model("glm-4.7-flash", true);
  model::Model whole = model::Model::load(gguf::File::parse("m.gguf", std::as_bytes(std::span(bytes))));
  ASSERT_EQ(whole.add_prediction(), std::nullopt);
  const size_t first = bytes.find("blk.2."), last = bytes.rfind(".weight") + 64;
  ASSERT_TRUE(first < last && last < bytes.size());
  for (size_t at = first; at < last; ++at) load_damaged(bytes, at);
}

INSTANTIATE_TEST_SUITE_P(Models, DamagedModel,
                         testing::Values("glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice::test
