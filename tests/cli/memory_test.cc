// The memory plan as a user meets it, and against what a run really takes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/memory_view.h"
#include "support/command.h"
#include "support/golden.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::HasSubstr;
using testing::StartsWith;

class Memory : public testing::Test, public test::CommandFolder {
 protected:
  Memory() : CommandFolder("memory") {}

  nlohmann::json inspect(const std::string& arguments) const {
    const CommandResult result = run("inspect --memory --json " + arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  /// A run with a full step of prompt rows takes what the plan says.
  void expect_plan_is_right(const std::string& model) const {
    std::ofstream(path("prompt")) << [] {
      std::string text;
      for (int i = 0; i < 1032; ++i) text += " a";
      return text;
    }();
    const std::string count = run("tokenize --ids -m " + model + " -f " + path("prompt")).out;
    const auto tokens = std::count(count.begin(), count.end(), '\n');
    ASSERT_GE(tokens, 1024);
    const std::string context = std::to_string(tokens + 40);
    const auto plan = inspect("-t 2 -c " + context + " " + model);
    const int64_t taken = own_bytes_while_running(
        {"run", "-m", model, "-f", path("prompt"), "-c", context, "-t", "2", "-n", "30", "--temp", "0"});
    const double expected = plan["total_bytes"].get<double>() + plan["process_bytes"].get<double>();
    EXPECT_NEAR(static_cast<double>(taken), expected, 0.1 * expected);
  }

  /// Memory of its own (no file's pages, which are the system's to take back) of a run that has read its
  /// prompt and waits for somebody to read its text.
  int64_t own_bytes_while_running(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), SLUICE_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(::open(path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      ::close(ends[0]);
      ::execv(argv[0], argv.data());
      ::_exit(99);
    }
    ::close(ends[1]);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1) << read_file(path("err"));
    ::kill(child, SIGSTOP);
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    std::string word;
    int64_t kilobytes = 0;
    while (status >> word && word != "RssAnon:") continue;
    status >> kilobytes;
    ::kill(child, SIGKILL);
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return kilobytes * 1024;
  }
};

TEST_F(Memory, InspectListsTheItems) {
  if (!test::has_proc()) GTEST_SKIP() << "no /proc here";
  const std::string model = test::source_path("models/fairy-tales.gguf");
  const auto json = inspect("-c 2048 " + model);
  EXPECT_EQ(json["context"], 2048);
  EXPECT_EQ(json["total_bytes"].get<int64_t>(),
            json["weights_bytes"].get<int64_t>() + json["cache_bytes"].get<int64_t>() +
                json["scratch_bytes"].get<int64_t>() + json["logits_bytes"].get<int64_t>());
  // Without the token table, of which a step reads some rows, and with what packing adds.
  const auto file_bytes = static_cast<double>(std::filesystem::file_size(model));
  EXPECT_NEAR(json["weights_bytes"].get<double>(), file_bytes, 0.15 * file_bytes);
  // Half the context, half the cache; float32 in place of f16, twice the cache.
  const auto half = inspect("-c 1024 " + model), ref = inspect("-c 2048 --backend ref " + model);
  EXPECT_EQ(2 * half["cache_bytes"].get<int64_t>(), json["cache_bytes"].get<int64_t>());
  EXPECT_EQ(ref["cache_bytes"].get<int64_t>(), 2 * json["cache_bytes"].get<int64_t>());
  EXPECT_THAT(run("inspect --memory " + model).out, HasSubstr("fits a context of 2048"));
  EXPECT_EQ(run("inspect -c 5 " + model).code, 2);
}

#ifndef SLUICE_SANITIZED  // they take memory of their own
TEST_F(Memory, APlanIsWhatARunTakes) {
  if (!test::has_proc()) GTEST_SKIP() << "no /proc here";
  expect_plan_is_right(test::source_path("models/fairy-tales.gguf"));
}

TEST_F(Memory, APlanIsWhatALargerSyntheticModelTakes) {
  if (!test::has_proc()) GTEST_SKIP() << "no /proc here";
  ASSERT_EQ(run("synth youtu-llm-2b " + path("m.gguf") + " --layers 2").code, 0);
  expect_plan_is_right(path("m.gguf"));
}
#endif

TEST_F(Memory, TooLittleIsToldItemByItem) {
  engine::LoadPlan plan{.context = 8192,
                        .needs = {17'200'000'000, 440'000'000, 90'000'000},
                        .logits_bytes = 2'000'000,
                        .available_bytes = 17'500'000'000,
                        .fitting_context = 3840};
  EXPECT_EQ(too_little_memory(plan),
            "needs 17.73 GB of memory, 17.50 GB are available: weights 17.20 GB, cache 440.00 MB for a "
            "context of 8192 "
            "tokens, scratch 90.00 MB, logits 2.00 MB; -c 3840 fits; --force loads it all the same");
  plan.fitting_context = 0;
  EXPECT_THAT(too_little_memory(plan), HasSubstr("; no context fits; "));
}

// Refused before anything is planned: the plan of a context that the model was not made for means nothing.
TEST_F(Memory, AContextBeyondTheModelsIsRefused) {
  const std::string model = test::source_path("models/fairy-tales.gguf");
  const nlohmann::json keys = nlohmann::json::parse(run("inspect --json " + model).out)["metadata"];
  const auto longest =
      keys[keys["general.architecture"].get<std::string>() + ".context_length"].get<int64_t>();
  EXPECT_EQ(run(fmt::format("inspect --memory -c {} {}", longest, model)).code, 0);
  const CommandResult refused = run(fmt::format("inspect --memory -c {} {}", longest + 1, model));
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            fmt::format("sluice: -c {}: the model was made for a context of {}\n", longest + 1, longest));
}

/// The small model with another number as its context.
std::string with_context(const std::string& path, uint32_t context) {
  std::string bytes = read_file(path);
  const std::string key = "context_length";
  std::memcpy(bytes.data() + bytes.find(key) + key.size() + 4, &context, sizeof context);
  write_file(path, std::as_bytes(std::span(bytes)));
  return path;
}

TEST_F(Memory, AnAbsurdContextIsAnErrorOrTakesWhatFits) {
  test::write_small_model("youtu-llm-2b", "q4_0", path("m.gguf"));
  const std::string model = with_context(path("m.gguf"), 0x80000000u);
  const auto plan = inspect("-c 1073741824 " + model);
  if (plan["fits"].get<bool>()) GTEST_SKIP() << "a machine with room for 2^30 tokens";
  const CommandResult asked = run("run -n 1 -m " + model + " -c 1073741824");
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.err, StartsWith("sluice: " + model + ": needs "));
  EXPECT_THAT(asked.err, HasSubstr(" fits; --force loads it all the same\n"));
  const CommandResult fitting = run("run -n 1 -m " + model);
  EXPECT_EQ(fitting.code, 0) << fitting.err;
  EXPECT_THAT(fitting.err,
              testing::ContainsRegex("context: [0-9]+ of the model's 2147483648 tokens, as many as fit"));
}

}  // namespace
}  // namespace sluice::cli
