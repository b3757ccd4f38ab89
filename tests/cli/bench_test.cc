// sluice bench as a user meets it, and the lists and ranges of its flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/bench_record.h"
#include "cli/number_list.h"
#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(NumberList, TakesListsAndRangesAsLlamaBenchDoes) {
  EXPECT_THAT(number_list("-p", "512", 0), ElementsAre(512));
  EXPECT_THAT(number_list("-p", "1,2,4", 0), ElementsAre(1, 2, 4));
  EXPECT_THAT(number_list("-p", "3-6", 0), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(number_list("-p", "512-2048+512", 0), ElementsAre(512, 1024, 1536, 2048));
  EXPECT_THAT(number_list("-p", "1-9*2,0", 0), ElementsAre(1, 2, 4, 8, 0));
  EXPECT_THAT(number_list("-p", "0-8*2", 0), ElementsAre(0));
}

TEST(NumberList, RefusesWhatIsNone) {
  for (const char* text : {"", ",", "1,", "a", "-1", "4-2", "1-4+0", "1-4*1", "1-", "1-4/2", "1 2",
                           "99999999999", "1-1073741824", "0x10"}) {
    EXPECT_THROW(number_list("-p", text, 0), UsageError) << text;
  }
  EXPECT_THROW(number_list("-npl", "0", 1), UsageError);
}

TEST(BenchTest, IsNamedAsByLlamaBench) {
  EXPECT_EQ((cli::BenchTest{.prompt = 512}).name(), "pp512");
  EXPECT_EQ((cli::BenchTest{.gen = 128}).name(), "tg128");
  EXPECT_EQ((cli::BenchTest{.prompt = 512, .gen = 128, .depth = 4096}).name(), "pp512+tg128 @ d4096");
  EXPECT_EQ((cli::BenchTest{.gen = 16, .parallel = 4}).name(), "tg16 x 4");
}

class Bench : public testing::Test, public test::CommandFolder {
 protected:
  Bench() : CommandFolder("bench") {}
};

// The fields that a program reading llama-bench's JSON may rely on (its README, August 2026).
constexpr const char* kLlamaBenchFields[] = {
    "build_commit", "build_number", "cpu_info",       "gpu_info",   "backends",  "model_filename",
    "model_type",   "model_size",   "model_n_params", "n_batch",    "n_ubatch",  "n_threads",
    "n_gpu_layers", "n_prompt",     "n_gen",          "n_depth",    "test_time", "avg_ns",
    "stddev_ns",    "avg_ts",       "stddev_ts",      "samples_ns", "samples_ts"};

TEST_F(Bench, JsonIsOneArrayWithLlamaBenchsFields) {
  const CommandResult result = run("bench -p 16,20 -n 4 -pg 8,4 -d 0-32+32 -npl 1,2 -r 3 -o json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json records = json::parse(result.out);
  ASSERT_TRUE(records.is_array());
  ASSERT_EQ(records.size(), 2u * (2 + 2 + 1));
  for (const json& record : records) {
    for (const char* field : kLlamaBenchFields) EXPECT_TRUE(record.contains(field)) << field;
    ASSERT_EQ(record["samples_ns"].size(), 3u);
    double mean_ns = 0, mean_ts = 0;
    const double tokens =
        record["n_prompt"].get<double>() + record["n_gen"].get<double>() * record["n_parallel"].get<double>();
    for (int i = 0; i < 3; ++i) {
      mean_ns += record["samples_ns"][i].get<double>() / 3;
      mean_ts += record["samples_ts"][i].get<double>() / 3;
      EXPECT_NEAR(record["samples_ts"][i].get<double>(), 1e9 * tokens / record["samples_ns"][i].get<double>(),
                  1e-6);
    }
    EXPECT_NEAR(record["avg_ns"].get<double>(), mean_ns, 1);
    EXPECT_NEAR(record["avg_ts"].get<double>(), mean_ts, 1e-6);
    EXPECT_GT(record["bytes_per_token"].get<double>(), 0);
    // No upper bound: the bundled model fits into a large cache, which is quicker than memory.
    EXPECT_GT(record["share_of_limit"].get<double>(), 0);
    if (test::has_proc()) {
      EXPECT_GT(record["peak_memory_bytes"].get<int64_t>(), 1 << 20);
    }
  }
  EXPECT_EQ(records[0]["test"], "pp16");
  EXPECT_EQ(records[3]["test"], "tg4 x 2");
  EXPECT_EQ(records[9]["test"], "pp8+tg4 @ d32");
  EXPECT_GT(records[3]["experts_distinct"].get<double>(), 0.9 * records[3]["experts_uniform"].get<double>());
  // A token at depth reads the cache too.
  EXPECT_GT(records[7]["bytes_per_token"].get<double>(), records[2]["bytes_per_token"].get<double>());
}

TEST(BenchTable, HasRoomForWhatGpusReach) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  BenchRecord record{.model = {.path = "m", .type = "deepseek2 2.0B Q4_0", .size_bytes = 1, .parameters = 1},
                     .backend = "cuda",
                     .test = {.gen = 128, .depth = 131072, .parallel = 1024, .cache = quant::Type::Q8_0},
                     .samples_ns = {5e8, 9e8},
                     .limit_seconds = 0.1};  // 203,890 ± 82,401 tokens a second
  make_bench_printer("-o", "md", file, record.test.name().size())->add(record);
  std::rewind(file);
  char line[1000];
  std::vector<size_t> lengths;
  while (std::fgets(line, sizeof line, file) != nullptr) lengths.push_back(std::strlen(line));
  std::fclose(file);
  EXPECT_THAT(lengths, ElementsAre(lengths[0], lengths[0], lengths[0] + 1));  // the sign takes two bytes
}

TEST_F(Bench, TablesHaveColumnsOfOneWidth) {
  const CommandResult result = run("bench -p 8 -n 4 -pg 8,4 -d 0,100 -ctk f16,q8_0 -r 1");
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  std::vector<size_t> bars;
  int count = 0;
  for (; std::getline(lines, line); ++count) {
    std::vector<size_t> here;
    size_t column = 0;
    for (const char c : line) {
      if ((c & 0xC0) == 0x80) continue;  // within a character of UTF-8
      if (c == '|') here.push_back(column);
      ++column;
    }
    if (count == 0) bars = here;
    EXPECT_EQ(here, bars) << line;
  }
  EXPECT_EQ(count, 2 + 2 * 2 * 3);
  EXPECT_THAT(result.out, HasSubstr("pp8"));
  EXPECT_THAT(result.err, HasSubstr("read bandwidth before"));
  EXPECT_THAT(result.err, HasSubstr("read bandwidth after"));
  EXPECT_THAT(result.err, testing::ContainsRegex("pp8: loaded in [0-9.]+ s, first token after [0-9.]+ ms"));
  EXPECT_THAT(result.err, testing::ContainsRegex("tg4: loaded in [0-9.]+ s"));
}

TEST_F(Bench, OtherFormatsHoldTheSame) {
  EXPECT_THAT(run("bench -p 8 -n 0 -r 1 -o csv").out, HasSubstr("build_commit,build_number,cpu_info"));
  // The others without a machine's peaks, which take seconds to measure.
  const std::string ref = "bench --backend ref -p 8 -r 1 ";
  const std::string sql = run(ref + "-n 0 -o sql").out;
  EXPECT_THAT(sql, HasSubstr("CREATE TABLE IF NOT EXISTS llama_bench"));
  EXPECT_THAT(sql, HasSubstr("INSERT INTO llama_bench"));
  const CommandResult lines = run(ref + "-n 2 -o jsonl");
  std::istringstream in(lines.out);
  std::string line;
  int count = 0;
  for (; std::getline(in, line); ++count) EXPECT_EQ(json::parse(line)["samples_ns"].size(), 1u);
  EXPECT_EQ(count, 2);
  // A flag that is given again is a list.
  const std::string twice = run(ref + "-p 16 -n 0 -o csv").out;
  EXPECT_THAT(twice, HasSubstr("\"pp8\""));
  EXPECT_THAT(twice, HasSubstr("\"pp16\""));
}

TEST_F(Bench, SweepPrintsALineForEachStepOfTheContext) {
  const CommandResult result = run("bench --sweep 64 -ub 16");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("|     PP |     TG |    N_KV |   T_PP s |  S_PP t/s |   T_TG s |  S_TG t/s |"));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2 + 4);
}

TEST_F(Bench, TellsWhatItCannotDo) {
  EXPECT_EQ(run("bench -p 4-2").code, 2);
  EXPECT_EQ(run("bench -o xml").code, 2);
  EXPECT_EQ(run("bench -pg 4").code, 2);
  const CommandResult deep = run("bench -d 1000000");
  EXPECT_EQ(deep.code, 1);
  EXPECT_THAT(deep.err, HasSubstr("its context is"));
}

// A router whose bias always selects the same experts: batches would read less than real text makes them
// read.
TEST_F(Bench, RefusesCollapsedRouting) {
  test::write_small_model("glm-4.7-flash", "q8_0", path("even.gguf"));
  test::GgufCopy copy(gguf::File::open(path("even.gguf")));
  for (size_t i = 0; i < copy.plan.tensors.size(); ++i) {
    if (copy.plan.tensors[i].name.find("exp_probs_b") == std::string::npos) continue;
    const float biases[] = {9, 9, 0, 0};  // two of four experts are used
    ASSERT_EQ(copy.bytes[i].size(), sizeof biases);
    std::memcpy(copy.bytes[i].data(), biases, sizeof biases);
  }
  copy.write(path("collapsed.gguf"));
  const CommandResult result =
      run("bench -m " + path("collapsed.gguf") + " -p 16 -n 3 -npl 1,8 -r 1 -t 1 -o json");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("tg3 x 8: refused: its rows selected 2.0 different experts a layer, and 4.0 "));
  const json records = json::parse(result.out);
  ASSERT_EQ(records.size(), 2u) << result.out;  // the prompt and the single sequence
  EXPECT_EQ(records[0]["test"], "pp16");
  EXPECT_EQ(records[0]["experts_distinct"], 2);
  EXPECT_EQ(records[1]["test"], "tg3");
}

TEST_F(Bench, PeaksAreOfThisMachine) {
  ::unsetenv("SLUICE_PEAK_BYTES");
  const CommandResult result = run("bench --peaks -t 1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("GB/s"));
  EXPECT_THAT(result.out, HasSubstr("| f32 "));
}

}  // namespace
}  // namespace sluice::cli
