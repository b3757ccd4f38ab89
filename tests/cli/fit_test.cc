// How much of a model stays on a GPU with so much memory. A backend of the CPU stands in for the GPU's.
#include "cli/fit.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/assemble.h"
#include "program/offload.h"

namespace sluice::cli {
namespace {

TEST(MemorySize, IsWrittenAsPeopleWriteIt) {
  EXPECT_EQ(memory_size_of("1000"), 1000);
  EXPECT_EQ(memory_size_of("1000B"), 1000);
  EXPECT_EQ(memory_size_of("12GB"), 12'000'000'000);
  EXPECT_EQ(memory_size_of("10.5GiB"), int64_t{21} << 29);
  EXPECT_EQ(memory_size_of("8G"), int64_t{8} << 30);
  EXPECT_EQ(memory_size_of("800m"), int64_t{800} << 20);
  EXPECT_EQ(memory_size_of("1Ti"), int64_t{1} << 40);
  for (const char* text : {"", "GB", "1Q", "1GBs", "-1G", "0", "nan", "inf", "1e30", "1 GB", "1GiBB", "0x10"})
    EXPECT_THROW(memory_size_of(text), UsageError) << text;
}

class FitTest : public testing::Test {
 protected:
  Fitted with(int64_t bytes) {
    return fit_to(*gpu, model, {.share = {.bytes = bytes, .stream_rows = -1}, .context = 256});
  }

  model::Model model = model::Model::load(bundled_model_path());
  std::unique_ptr<program::Backend> gpu = make_backend("cpu", 1);
  std::vector<program::RoutedExperts> mixtures = program::routed_experts(model.program);
};

TEST_F(FitTest, AsManyMixturesLeaveAsMust) {
  ASSERT_GT(mixtures.size(), 2u);
  const Fitted all = with(int64_t{1} << 30);
  EXPECT_EQ(all.mixtures, 0u);
  EXPECT_EQ(all.moved_bytes, 0);
  EXPECT_EQ(all.all_mixtures, mixtures.size());
  // The least that it fits into with no mixture away, then with one more each time.
  int64_t least = int64_t{1} << 30;
  for (size_t away = 0; away < mixtures.size(); ++away) {
    int64_t too_little = 0;
    while (least - too_little > 1) {
      const int64_t middle = too_little + (least - too_little) / 2;
      bool fits = false;
      try {
        fits = with(middle).mixtures <= away;
      } catch (const Error&) {
      }
      (fits ? least : too_little) = middle;
    }
    const Fitted fitted = with(least);
    EXPECT_EQ(fitted.mixtures, away);
    EXPECT_EQ(with(least - 1).mixtures, away + 1) << "a byte less";
    EXPECT_EQ(with(least - 1).moved_bytes - fitted.moved_bytes, mixtures[mixtures.size() - 1 - away].bytes);
  }
}

TEST_F(FitTest, SaysWhatIsLackingWhereNothingHelps) {
  try {
    with(1000);
    FAIL() << "it cannot fit";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("even with all routed experts in the CPU's"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("fairy-tales.gguf"), std::string::npos) << error.what();
  }
}

TEST_F(FitTest, TellsWhatLiesWhere) {
  const Fitted alone{24, 46, int64_t{10} << 30, 8'900'000'000, program::kNeverStream};
  const std::string text =
      "GPU memory: 10.74 GB; experts of 24 of 46 layers, 8.90 GB, are computed by the CPU";
  EXPECT_EQ(alone.text(), text);
  Fitted streams = alone;
  streams.stream_rows = 96;
  EXPECT_EQ(streams.text(), text + ", or come to the GPU for prompts");
}

}  // namespace
}  // namespace sluice::cli
