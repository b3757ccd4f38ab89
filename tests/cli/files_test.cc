// Model files under the names and in the pieces that users have them in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/golden.h"

namespace sluice::test {
namespace {

using testing::HasSubstr;

const std::string kModel = SLUICE_SOURCE_DIR "/models/fairy-tales.gguf";
const std::string kTale = " -p 'Once upon a time' -n 6 --temp 0";

std::string part_name(int number) { return fmt::format("tales-{:05d}-of-00003.gguf", number); }

/// The bundled model in three parts: the metadata, and the tensors in two halves.
void write_parts(const CommandFolder& folder) {
  const GgufCopy whole(gguf::File::open(kModel));
  const size_t half = whole.plan.tensors.size() / 2;
  for (int number = 1; number <= 3; ++number) {
    GgufCopy part = whole;
    if (number > 1) part.plan.metadata.clear();
    const auto keep = [&](auto& list) {
      if (number == 1) list.clear();
      if (number == 2) list.resize(half);
      if (number == 3) list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(half));
    };
    keep(part.plan.tensors);
    keep(part.bytes);
    part.plan.metadata.push_back({"split.no", static_cast<uint16_t>(number - 1)});
    part.plan.metadata.push_back({"split.count", uint16_t{3}});
    part.plan.metadata.push_back({"split.tensors.count", static_cast<int32_t>(whole.plan.tensors.size())});
    part.write(folder.path(part_name(number)));
  }
}

TEST(Files, ASplitModelRunsFromItsFirstPart) {
  const CommandFolder folder("parts");
  write_parts(folder);
  const std::string whole = folder.run("run -m " + kModel + kTale).out;
  const CommandResult parts = folder.run("run -m " + folder.path(part_name(1)) + kTale);
  EXPECT_EQ(parts.code, 0) << parts.err;
  EXPECT_EQ(parts.out, whole);
  EXPECT_GT(whole.size(), 20u);

  const CommandResult inspected = folder.run("inspect " + folder.path(part_name(1)));
  EXPECT_THAT(inspected.out, HasSubstr("\nparts         3\n"));
  EXPECT_THAT(folder.run("inspect --json " + folder.path(part_name(1))).out, HasSubstr("\"parts\": 3,"));

  const CommandResult second = folder.run("run -m " + folder.path(part_name(2)) + kTale);
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("open the first part, " + folder.path(part_name(1))));
}

TEST(Files, OnlySomeModelsHaveAPredictionBlock) {
  const CommandFolder folder("mtp");
  const CommandResult result = folder.run("synth youtu-llm-2b " + folder.path("x.gguf") + " --mtp");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--mtp: youtu-llm-2b has no block of multi-token prediction"));
}

TEST(Files, APredictionBlockAloneIsShownAndNotRun) {
  const CommandFolder folder("mtp-alone");
  const std::string path = made_file("tools/oracles/models.py", "glm-mtp-alone", "glm-mtp-alone.gguf");
  const CommandResult shown = folder.run("inspect " + path);
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("\nholds         a block of multi-token prediction alone"));
  for (const std::string command :
       {"run -n 2 -m ", "bench -m ", "perplexity -f /dev/null -m ", "inspect --program "}) {
    const CommandResult result = folder.run(command + path);
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(path + ": holds a block of multi-token prediction alone"));
  }
}

TEST(Files, NeedNoSuffix) {
  const CommandFolder folder("blob");
  const std::string blob = folder.path("sha256-4a5b6c7d");
  std::filesystem::create_symlink(kModel, blob);
  const CommandResult result = folder.run("run -m " + blob + kTale);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, folder.run("run -m " + kModel + kTale).out);
}

/// The bundled model with other metadata: values by key, those without one taken out.
std::string changed_model(const CommandFolder& folder, const char* name,
                          const std::map<std::string, std::optional<gguf::WriteValue>>& changes) {
  GgufCopy copy(gguf::File::open(kModel));
  std::erase_if(copy.plan.metadata, [&](const auto& entry) { return changes.contains(entry.key); });
  for (const auto& [key, value] : changes)
    if (value) copy.plan.metadata.push_back({key, *value});
  copy.write(folder.path(name));
  return folder.path(name);
}

TEST(Files, TextsBeginAsTheirPreTokenizerWants) {
  const CommandFolder folder("begins");
  const auto prompt_tokens = [&](const std::string& pre, std::optional<gguf::WriteValue> says) {
    const std::string model = changed_model(
        folder, "m.gguf", {{"tokenizer.ggml.pre", pre}, {"tokenizer.ggml.add_bos_token", std::move(says)}});
    const CommandResult result = folder.run("run -m " + model + " -p x -n 1");
    EXPECT_EQ(result.code, 0) << result.err;
    const size_t at = result.err.find("prompt: ");
    return at == std::string::npos ? -1 : std::atoi(result.err.c_str() + at + 8);
  };
  for (const char* pre : {"llama-bpe", "llama3", "falcon3", "tekken"}) {
    EXPECT_EQ(prompt_tokens(pre, std::nullopt), 2) << pre;
    EXPECT_EQ(prompt_tokens(pre, false), 1) << pre;
  }
  for (const char* pre : {"qwen2", "deepseek-r1-qwen", "smollm", "glm4"}) {
    EXPECT_EQ(prompt_tokens(pre, std::nullopt), 1) << pre;
    EXPECT_EQ(prompt_tokens(pre, true), 2) << pre;
  }
}

TEST(Files, NoneIsWrittenInSeveralWays) {
  const CommandFolder folder("none");
  const std::string plain = folder.run("run -m " + kModel + kTale).out;
  for (const char* key : {"padding_token_id", "unknown_token_id", "bos_token_id"}) {
    const CommandResult result = folder.run(
        "run -m " + changed_model(folder, "id.gguf", {{std::string("tokenizer.ggml.") + key, 0xFFFFFFFFu}}) +
        kTale);
    EXPECT_EQ(result.code, 0) << key << result.err;
    EXPECT_EQ(result.out, plain) << key;
  }
  const CommandResult other = folder.run(
      "run -m " + changed_model(folder, "id.gguf", {{"tokenizer.ggml.eos_token_id", 0xFFFFFFFEu}}) + kTale);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("eos token: id"));
  for (const char* key : {"temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n"}) {
    const std::string model =
        changed_model(folder, "s.gguf", {{std::string("general.sampling.") + key, int32_t{-1}}});
    const CommandResult result = folder.run("run -m " + model + " -p x -n 2");
    EXPECT_EQ(result.code, 0) << key << result.err;
  }
}

TEST(Files, AVocabularyWithoutItsPreTokenizerIsToldOf) {
  const CommandFolder folder("pre");
  const std::string model = changed_model(folder, "m.gguf", {{"tokenizer.ggml.pre", std::nullopt}});
  const CommandResult result = folder.run("run -m " + model + kTale);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("no tokenizer.ggml.pre"));
  EXPECT_THAT(folder.run("run -m " + kModel + kTale).err, testing::Not(HasSubstr("tokenizer.ggml.pre")));
}

}  // namespace
}  // namespace sluice::test
