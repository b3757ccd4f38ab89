// Damaged model files through the real binary: exit code 1 and a message, or a normal run; no signal, little
// memory, little time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/golden.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class Hostile : public testing::Test, public test::CommandFolder {
 protected:
  Hostile() : CommandFolder("hostile") {}

  std::string write(const std::string& bytes) const {
    std::ofstream(path("m.gguf"), std::ios::binary | std::ios::trunc) << bytes;
    return path("m.gguf");
  }

  /// Runs a command on these bytes and holds it to the promises; true when it accepted the file.
  bool survives([[maybe_unused]] const std::string& bytes, std::vector<std::string> arguments) const {
    const test::MeasuredRun outcome = measure(std::move(arguments));
    const int code = outcome.code;
    EXPECT_TRUE(code == 0 || code == 1) << code << ": " << outcome.err;
    if (code == 1) {
      EXPECT_THAT(outcome.err, StartsWith("sluice: "));
    }
#ifndef SLUICE_SANITIZED  // they take memory of their own
    EXPECT_LT(outcome.peak_bytes, static_cast<int64_t>(bytes.size()) + 200'000'000);
#endif
    EXPECT_LT(outcome.processor_seconds, 5.0);
    EXPECT_LT(outcome.seconds, 60.0) << "it waits for something, even if the machine is busy";
    return code == 0;
  }
  bool survives(const std::string& bytes) const {
    const std::string model = write(bytes);
    const bool inspected = survives(bytes, {"inspect", model});
    const bool ran = survives(bytes, {"run", "-m", model, "-n", "1", "-p", "A", "--temp", "1"});
    EXPECT_TRUE(inspected || !ran) << "what inspect refuses must not run";
    return ran;
  }

  std::string small_file(const std::string& name = "glm-4.7-flash") const {
    test::write_small_model(name, "q4_k_m", path("small.gguf"));
    return read_file(path("small.gguf"));
  }
};

TEST_F(Hostile, TheSmallFilesAreSound) {
  for (const char* name : {"glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"})
    EXPECT_TRUE(survives(small_file(name))) << name;
}

TEST_F(Hostile, AnAnswerWithoutNumbersIsAnError) {
  small_file();
  test::GgufCopy copy(gguf::File::open(path("small.gguf")));
  for (size_t i = 0; i < copy.bytes.size(); ++i)  // a float32 of all bits is none
    if (copy.plan.tensors[i].name == "output_norm.weight") std::ranges::fill(copy.bytes[i], std::byte{0xFF});
  copy.write(path("m.gguf"));
  for (const char* drawn : {"0", "1"}) {
    const test::CommandResult result = run("run -m " + path("m.gguf") + " -p A -n 3 --temp " + drawn);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr("sluice: no logit of the model is a number"));
  }
}

TEST_F(Hostile, EveryTruncationIsAnError) {
  const std::string whole = small_file();
  for (size_t size = 0; size < whole.size(); size += 1 + size / 9) {
    SCOPED_TRACE(size);
    EXPECT_FALSE(survives(whole.substr(0, size)));
  }
  for (const size_t cut : {1, 2, 31, 32, 33, 1000}) {
    SCOPED_TRACE(cut);
    EXPECT_FALSE(survives(whole.substr(0, whole.size() - cut)));
  }
}

TEST_F(Hostile, DamageAnywhereInASmallFile) {
  const std::string whole = small_file();
  int accepted = 0, runs = 0;
  for (size_t at = 4; at < whole.size(); at += 1 + whole.size() / 150, ++runs) {
    SCOPED_TRACE(at);
    std::string damaged = whole;
    for (size_t i = at; i < std::min(at + 1 + runs % 8, whole.size()); ++i)
      damaged[i] = static_cast<char>(~damaged[i]);
    accepted += survives(damaged) ? 1 : 0;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, runs);
}

TEST_F(Hostile, DamageInTheBundledModel) {
  const std::string whole = read_file(test::source_path("models/fairy-tales.gguf"));
  const size_t header = whole.find("blk.0.");
  ASSERT_LT(header, whole.size());
  for (int i = 0; i < 24; ++i) {
    const size_t at =
        i < 16 ? header * static_cast<size_t>(i) / 15 : whole.size() * static_cast<size_t>(i - 15) / 9;
    SCOPED_TRACE(at);
    std::string damaged = whole;
    damaged[std::min(at, whole.size() - 1)] ^= i % 2 == 0 ? '\xFF' : '\x80';
    survives(damaged);
    if (i % 4 == 0) {
      EXPECT_FALSE(survives(whole.substr(0, std::min(at, whole.size() - 1))));
    }
  }
}

TEST_F(Hostile, WeightsOfNothingButNaN) {
  const std::string whole = small_file();
  for (const char byte : {'\xFF', '\x7F', '\x00'}) {
    std::string damaged = whole;
    std::fill(damaged.begin() + static_cast<std::ptrdiff_t>(damaged.size() * 2 / 3), damaged.end(), byte);
    const std::string model = write(damaged);
    for (const char* backend : {"cpu", "ref"}) {
      EXPECT_EQ(survives(damaged, {"run", "-m", model, "-n", "3", "--backend", backend}), byte == '\x00')
          << "a text of no numbers";
      std::ofstream(path("t.json")) << R"({"tokens": [1, 2, 3]})";
      EXPECT_TRUE(survives(damaged, {"logits", "-m", model, "--tokens", path("t.json"), "-o", path("l"),
                                     "--backend", backend}));
    }
  }
}

/// The bytes with the little-endian number after `key` and its type replaced.
std::string with_number(std::string bytes, const std::string& key, uint64_t value, size_t size) {
  const size_t at = bytes.find(key) + key.size() + 4;
  std::memcpy(bytes.data() + at, &value, size);
  return bytes;
}

TEST_F(Hostile, AbsurdFactsAndCounts) {
  if (!test::has_proc()) GTEST_SKIP() << "no /proc here";
  const std::string whole = small_file();
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "head_count",
        "kv_lora_rank", "key_length_mla", "dimension_count", "expert_count", "expert_used_count",
        "layer_norm_rms_epsilon", "freq_base", "expert_weights_scale", "eos_token_id"}) {
    ASSERT_NE(whole.find(key), std::string::npos) << key;
    for (const uint64_t value : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu, 0x7FC00000u, 0x7F800000u}) {
      SCOPED_TRACE(std::string(key) + " " + std::to_string(value));
      survives(with_number(whole, key, value, 4));
    }
  }
  for (const size_t at : {8, 16}) {  // tensor and metadata counts
    for (const uint64_t value : {uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
      std::string damaged = whole;
      std::memcpy(damaged.data() + at, &value, sizeof value);
      EXPECT_FALSE(survives(damaged));
    }
  }
}

TEST_F(Hostile, AFileOfZerosAfterItsHeaderPromisesNothing) {
  // Large counts that the file's size would allow: 40 MB of zeros as entries, tensors or strings.
  std::string bytes = small_file().substr(0, 24);
  bytes.resize(40'000'000, '\0');
  for (const auto& [tensors, entries] :
       {std::pair<uint64_t, uint64_t>{0, 3'000'000}, {1'000'000, 0}, {60'000, 16'000}}) {
    std::memcpy(bytes.data() + 8, &tensors, 8);
    std::memcpy(bytes.data() + 16, &entries, 8);
    EXPECT_FALSE(survives(bytes));
  }
}

TEST_F(Hostile, AFileTruncatedUnderARunningProgramEndsItWithOneLine) {
  const std::string model = path("copy.gguf");
  std::filesystem::copy_file(test::source_path("models/fairy-tales.gguf"), model);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // A pipe that holds less than a context's text: the program waits in its writing until the file is short.
  ASSERT_EQ(::fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(::open(path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::close(ends[0]);
    ::execl(SLUICE_BINARY, SLUICE_BINARY, "run", "-m", model.c_str(), "--temp", "0", "--repeat-penalty", "1",
            "-n", "-1", nullptr);
    ::_exit(99);
  }
  ::close(ends[1]);
  char buffer[256];
  ASSERT_GT(::read(ends[0], buffer, sizeof buffer), 0) << "it writes";
  ASSERT_EQ(::truncate(model.c_str(), 100'000), 0);
  while (::read(ends[0], buffer, sizeof buffer) > 0) continue;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_EQ(read_file(path("err")), "sluice: " + model + ": the file was truncated while it was in use\n");
}

}  // namespace
}  // namespace sluice::cli
