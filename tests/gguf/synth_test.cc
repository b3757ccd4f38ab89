// Synthetic models: the real shapes and sizes without writing them, and small files that are written and
// read.
#include "gguf/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "base/file.h"
#include "gguf/raw_file.h"

namespace sluice::gguf {
namespace {

using quant::Type;
using testing::ElementsAre;
using testing::Pair;

SynthOptions options_for(const std::string& model, const std::string& mix) {
  return {.model = find_synth_model(model), .mix = find_synth_mix(mix)};
}

std::map<std::string, int> types_of(const WritePlan& plan) {
  std::map<std::string, int> types;
  for (const WriteTensor& tensor : plan.tensors) ++types[quant::type_info(tensor.type).name];
  return types;
}

const WriteTensor& tensor_of(const WritePlan& plan, const std::string& name) {
  for (const WriteTensor& tensor : plan.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw Error("no tensor " + name);
}

/// Bytes that one token reads: everything but the embedding's other rows and the experts not chosen.
double gigabytes_per_token(const SynthModel& model, const WritePlan& plan) {
  double bytes = 0;
  for (const WriteTensor& tensor : plan.tensors) {
    const auto size = static_cast<double>(tensor.bytes());
    if (tensor.name == "token_embd.weight" && !model.tied_output) continue;
    const bool experts = tensor.name.find("_exps.") != std::string::npos;
    bytes += experts ? size * model.experts_used / model.experts : size;
  }
  return bytes / 1e9;
}

TEST(Synth, SizesAreThoseOfTheRealFiles) {
  const WritePlan glm = plan_synth(options_for("glm-4.7-flash", "q4_0"));
  EXPECT_EQ(glm.tensors.size(), 844u);
  EXPECT_NEAR(static_cast<double>(glm.file_bytes()) / 1e9, 17.18, 0.006);
  EXPECT_EQ(types_of(glm)["F32"], 281);
  EXPECT_EQ(plan_synth(options_for("deepseek-v2-lite", "q4_0")).tensors.size(), 26u * 15 + 11 + 3);
  EXPECT_EQ(plan_synth(options_for("youtu-llm-2b", "q4_0")).tensors.size(), 32u * 13 + 2);
}

/// Billions of numbers, and how many of them are a token's.
std::pair<double, double> billions(const char* name) {
  const SynthModel& model = *find_synth_model(name);
  double all = 0, active = 0;
  for (const WriteTensor& tensor : plan_synth(options_for(name, "q4_k_m")).tensors) {
    const double count = std::accumulate(tensor.shape.begin(), tensor.shape.end(), 1.0, std::multiplies<>());
    const bool routed = tensor.name.find("_exps.") != std::string::npos;
    all += count;
    active +=
        routed ? count * static_cast<double>(model.experts_used) / static_cast<double>(model.experts) : count;
  }
  return {all / 1e9, active / 1e9};
}

// As published: 671 billion numbers, of which 37 are a token's, and 49.1.
TEST(Synth, ModelsHaveTheirNumberOfParameters) {
  const auto [all, active] = billions("deepseek-v3");
  EXPECT_NEAR(all, 671.0, 0.5);
  EXPECT_NEAR(active, 37.5, 0.7);
  EXPECT_NEAR(billions("kimi-linear-48b-a3b").first, 49.1, 0.1);
}

TEST(Synth, BytesPerToken) {
  const std::map<std::string, double> expected = {{"glm-4.7-flash", 2.303}, {"deepseek-v2-lite", 1.553},
                                                  {"youtu-llm-2b", 1.208},  {"qwen3-30b-a3b", 1.840},
                                                  {"glm-4.5-air", 7.656},   {"qwen3-8b", 4.431},
                                                  {"gpt-oss-20b", 2.3371},  {"llama-3.1-8b", 4.3726}};
  for (const auto& [name, gigabytes] : expected) {
    EXPECT_NEAR(gigabytes_per_token(*find_synth_model(name), plan_synth(options_for(name, "q4_0"))),
                gigabytes, 5e-4)
        << name;
  }
}

TEST(Synth, MixesFollowTheirRules) {
  EXPECT_THAT(types_of(plan_synth(options_for("glm-4.7-flash", "q4_k_m"))),
              ElementsAre(Pair("F32", 281), Pair("Q4_K", 470), Pair("Q5_0", 47), Pair("Q6_K", 46)));
  EXPECT_THAT(types_of(plan_synth(options_for("glm-4.7-flash", "q4_0_plain"))),
              ElementsAre(Pair("F32", 281), Pair("Q4_0", 562), Pair("Q6_K", 1)));
  EXPECT_THAT(types_of(plan_synth(options_for("glm-4.7-flash", "mxfp4"))),
              ElementsAre(Pair("F32", 281), Pair("MXFP4", 3 * 46 + 2 * 47), Pair("Q8_0", 331)));
  EXPECT_THAT(types_of(plan_synth(options_for("glm-4.7-flash", "iq2_xxs"))),
              ElementsAre(Pair("F32", 281), Pair("IQ2_XXS", 3 * 46), Pair("Q4_K", 330), Pair("Q6_K", 1),
                          Pair("Q8_0", 2 * 47)));
  EXPECT_THAT(types_of(plan_synth(options_for("glm-4.7-flash", "nvfp4"))),
              ElementsAre(Pair("F32", 281 + 326), Pair("NVFP4", 47 + 3 + 46 * 6), Pair("Q8_0", 237)));
  const WritePlan scaled = plan_synth(options_for("qwen3-30b-a3b", "nvfp4"));
  EXPECT_EQ(tensor_of(scaled, "blk.0.ffn_up_exps.scale").shape, std::vector<int64_t>{128});
  EXPECT_EQ(tensor_of(scaled, "blk.0.attn_q.scale").shape, std::vector<int64_t>{1});
  EXPECT_EQ(tensor_of(scaled, "output.weight").type, Type::Q8_0);
  const WritePlan lite = plan_synth(options_for("deepseek-v2-lite", "q4_k_m"));
  EXPECT_EQ(tensor_of(lite, "blk.0.ffn_down.weight").type, Type::Q8_0);       // 10944 columns, wanted Q6_K
  EXPECT_EQ(tensor_of(lite, "blk.3.ffn_down_exps.weight").type, Type::Q5_0);  // 1408 columns, wanted Q4_K
  EXPECT_EQ(tensor_of(lite, "blk.3.ffn_down_shexp.weight").type, Type::Q4_K);
  const WritePlan youtu = plan_synth(options_for("youtu-llm-2b", "q4_0"));
  EXPECT_EQ(tensor_of(youtu, "token_embd.weight").type, Type::Q6_K);
  EXPECT_EQ(tensor_of(youtu, "blk.3.ffn_down.weight").type, Type::Q4_1);
  EXPECT_EQ(tensor_of(youtu, "blk.4.ffn_down.weight").type, Type::Q4_0);
}

TEST(Synth, APredictionBlockCountsWhereEighthsAreCounted) {
  SynthOptions options = options_for("glm-4.7-flash", "q4_k_m");
  const WritePlan without = plan_synth(options);
  options.prediction = true;
  const WritePlan with = plan_synth(options);
  EXPECT_EQ(with.tensors.size(), 868u);
  EXPECT_EQ(tensor_of(without, "blk.5.ffn_down_exps.weight").type, Type::Q4_K);
  EXPECT_EQ(tensor_of(with, "blk.5.ffn_down_exps.weight").type, Type::Q6_K);  // 5 < 48 / 8
  EXPECT_THAT(tensor_of(with, "blk.47.nextn.eh_proj.weight").shape, ElementsAre(4096, 2048));
}

TEST(Synth, ShapesAreThoseOfTheRealModels) {
  const WritePlan glm = plan_synth(options_for("glm-4.7-flash", "q4_0"));
  EXPECT_THAT(tensor_of(glm, "blk.1.attn_k_b.weight").shape, ElementsAre(192, 512, 20));
  EXPECT_THAT(tensor_of(glm, "blk.1.attn_v_b.weight").shape, ElementsAre(512, 256, 20));
  EXPECT_THAT(tensor_of(glm, "blk.1.attn_output.weight").shape, ElementsAre(5120, 2048));
  EXPECT_THAT(tensor_of(glm, "blk.46.ffn_down_exps.weight").shape, ElementsAre(1536, 2048, 64));
  EXPECT_THAT(tensor_of(glm, "blk.46.exp_probs_b.bias").shape, ElementsAre(64));
  const WritePlan qwen = plan_synth(options_for("qwen3-30b-a3b", "q4_k_m"));
  EXPECT_EQ(qwen.tensors.size(), 48u * 12 + 3);
  EXPECT_THAT(tensor_of(qwen, "blk.47.attn_q.weight").shape, ElementsAre(2048, 4096));
  EXPECT_THAT(tensor_of(qwen, "blk.47.attn_k.weight").shape, ElementsAre(2048, 512));
  EXPECT_THAT(tensor_of(qwen, "blk.0.ffn_down_exps.weight").shape, ElementsAre(768, 2048, 128));
  EXPECT_NEAR(static_cast<double>(qwen.file_bytes()) / 1e9, 18.56, 0.1);  // Qwen3-30B-A3B-Q4_K_M.gguf
  const WritePlan air = plan_synth(options_for("glm-4.5-air", "q4_k_m"));
  EXPECT_THAT(tensor_of(air, "blk.45.attn_output.weight").shape, ElementsAre(12288, 4096));
  EXPECT_THAT(tensor_of(air, "blk.45.attn_v.bias").shape, ElementsAre(1024));
  const WritePlan oss = plan_synth(options_for("gpt-oss-20b", "mxfp4"));
  EXPECT_EQ(oss.tensors.size(), 24u * 19 + 3);  // as the published file has
  EXPECT_THAT(tensor_of(oss, "blk.23.ffn_gate_exps.bias").shape, ElementsAre(2880, 32));
  EXPECT_EQ(tensor_of(oss, "blk.23.ffn_down_exps.bias").type, Type::F32);
  EXPECT_EQ(tensor_of(oss, "blk.0.attn_sinks.weight").type, Type::F32);
  EXPECT_NEAR(static_cast<double>(oss.file_bytes()) / 1e9, 12.11, 0.02);  // gpt-oss-20b-mxfp4.gguf
  const WritePlan llama = plan_synth(options_for("llama-3.1-8b", "q4_k_m"));
  EXPECT_NEAR(static_cast<double>(llama.file_bytes()) / 1e9, 4.92, 0.03);  // Llama-3.1-8B's Q4_K_M
}

TEST(Synth, RandomBlocksHaveTheDeviationAskedFor) {
  int types = 0;
  for (const quant::TypeInfo& info : quant::all_types()) {
    if (info.decode == nullptr) continue;
    ++types;
    for (const float deviation : {0.022f, 0.03f, 1.0f}) {
      const int64_t count = 1 << 17;
      std::vector<std::byte> blocks(static_cast<size_t>(quant::bytes_of(info, count)));
      random_blocks(info.type, 0, deviation, 3, blocks);
      std::vector<float> numbers(static_cast<size_t>(count));
      info.decode(blocks.data(), numbers.data(), count);
      double sum = 0, squares = 0;
      for (const float number : numbers) {
        ASSERT_TRUE(std::isfinite(number));
        sum += number;
        squares += double{number} * number;
      }
      EXPECT_NEAR(std::sqrt(squares / count) / deviation, 1, 0.03) << info.name << " " << deviation;
      EXPECT_NEAR(sum / count / deviation, 0, 0.02) << info.name;
    }
  }
  EXPECT_EQ(types, 24);
}

/// A model like `name` that is small enough to write often.
SynthModel shrunk(const std::string& name) {
  SynthModel model = *find_synth_model(name);
  model.layers = std::min(model.layers, 3);
  model.dense_layers = std::min(model.dense_layers, model.layers);
  model.width = model.dense_width = 256;
  model.heads = 2;
  if (model.q_rank > 0) model.q_rank = 256;
  if (model.kv_heads > 0) model.kv_heads = 1;
  if (model.experts > 0) model.experts = 8;
  model.expert_width = 96;
  model.vocabulary = 1024;
  return model;
}

TEST(Synth, EveryModelAndMixIsWrittenAndRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "small.gguf";
  for (const SynthModel& whole : synth_models()) {
    const SynthModel model = shrunk(whole.name);
    for (const SynthMix& mix : synth_mixes()) {
      const SynthOptions options = {.model = &model, .mix = &mix, .layers = 2};
      const WritePlan plan = plan_synth(options);
      uint64_t reported = 0;
      write_synth(options, plan, path,
                  [&](uint64_t done, uint64_t total) { reported = done == total ? total : 0; });
      const File file = File::open(path);
      EXPECT_EQ(file.size_bytes(), plan.file_bytes());
      EXPECT_GT(reported, 0u);
      EXPECT_EQ(file.tensors().size(), plan.tensors.size());
      EXPECT_EQ(file.integer(fmt::format("{}.block_count", model.architecture)), 2);
      EXPECT_EQ(file.integer(fmt::format("{}.vocab_size", model.architecture)), 1024);
      EXPECT_EQ(file.strings("tokenizer.ggml.tokens")->size(), 1024u);
      EXPECT_FALSE(std::filesystem::exists(path + ".part"));
      for (const Tensor& tensor : file.tensors()) {
        std::vector<float> numbers(static_cast<size_t>(tensor.count()));
        quant::type_info(tensor.type).decode(tensor.bytes.data(), numbers.data(), tensor.count());
        EXPECT_TRUE(std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }));
      }
    }
  }
}

TEST(Synth, OneLayerOfARealShapeIsWrittenAndRead) {
  const TemporaryFolder folder;
  SynthOptions options = options_for("youtu-llm-2b", "q4_0");
  options.layers = 1;
  write_synth(options, plan_synth(options), folder / "one.gguf", [](uint64_t, uint64_t) {});
  const File file = File::open(folder / "one.gguf");
  EXPECT_EQ(file.tensors().size(), 2u + 13);
  EXPECT_EQ(file.integer("deepseek2.leading_dense_block_count"), 1);
}

TEST(Synth, SeedsDecideTheBytes) {
  const TemporaryFolder folder;
  const SynthModel model = shrunk("glm-4.7-flash");
  const auto bytes = [&](uint64_t seed, int layers) {
    const SynthOptions options = {.model = &model, .mix = &synth_mixes()[0], .layers = layers, .seed = seed};
    write_synth(options, plan_synth(options), folder / "m.gguf", [](uint64_t, uint64_t) {});
    const File file = File::open(folder / "m.gguf");
    const auto tensor = file.tensor("blk.1.ffn_up_exps.weight")->bytes;
    return std::string(reinterpret_cast<const char*>(tensor.data()), tensor.size());
  };
  EXPECT_EQ(bytes(1, 2), bytes(1, 2));
  EXPECT_EQ(bytes(1, 2), bytes(1, 3));  // a cut model is the beginning of the whole
  EXPECT_NE(bytes(1, 2), bytes(2, 2));
}

TEST(Synth, VocabulariesAreSound) {
  for (const SynthModel& model : synth_models()) {
    std::map<std::string, WriteValue> keys;
    for (WriteEntry& entry : synth_metadata({.model = &model, .mix = &synth_mixes()[0]})) {
      keys[entry.key] = std::move(entry.value);
    }
    const auto& tokens = std::get<std::vector<std::string>>(keys["tokenizer.ggml.tokens"]);
    const auto& merges = std::get<std::vector<std::string>>(keys["tokenizer.ggml.merges"]);
    EXPECT_EQ(tokens.size(), static_cast<size_t>(model.vocabulary)) << model.name;
    EXPECT_EQ(std::get<std::vector<int32_t>>(keys["tokenizer.ggml.token_type"]).size(), tokens.size());
    const std::set<std::string> known(tokens.begin(), tokens.end());
    EXPECT_EQ(known.size(), tokens.size()) << "two tokens are alike";
    for (const std::string& merge : merges) {
      const size_t space = merge.find(' ');
      const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
      ASSERT_TRUE(known.contains(left) && known.contains(right) && known.contains(left + right)) << merge;
    }
    EXPECT_LT(std::get<uint32_t>(keys["tokenizer.ggml.eos_token_id"]), tokens.size());
  }
}

TEST(Synth, ControlTokensAreAtTheirRealIds) {
  const SynthOptions options = options_for("glm-4.7-flash", "q4_0");
  for (const WriteEntry& entry : synth_metadata(options)) {
    if (entry.key != "tokenizer.ggml.tokens") continue;
    const auto& tokens = std::get<std::vector<std::string>>(entry.value);
    EXPECT_EQ(tokens[154820], "<|endoftext|>");
    EXPECT_EQ(tokens[154822], "[gMASK]");
    EXPECT_EQ(tokens[154827], "<|user|>");
    EXPECT_EQ(tokens[154829], "<|observation|>");
    EXPECT_EQ(tokens[154838], "<|code_prefix|>");
  }
}

TEST(Synth, AFileInTheWayIsReplacedOnlyBySuccess) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.gguf", text = "precious";
  write_file(path, std::as_bytes(std::span(text)));
  const SynthModel model = shrunk("youtu-llm-2b");
  const SynthOptions options = {.model = &model, .mix = &synth_mixes()[0]};
  const auto interrupt = [](uint64_t, uint64_t) { throw Error("interrupted"); };
  EXPECT_THROW(write_synth(options, plan_synth(options), path, interrupt), Error);
  EXPECT_EQ(read_file(path), "precious");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  write_synth(options, plan_synth(options), path, [](uint64_t, uint64_t) {});
  EXPECT_NO_THROW(File::open(path));
}

TEST(Synth, ADiskWithoutRoomIsNamedBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  SynthModel model = *find_synth_model("youtu-llm-2b");
  model.dense_width = int64_t{1} << 32;
  const SynthOptions options = {.model = &model, .mix = &synth_mixes()[0]};
  try {
    write_synth(options, plan_synth(options), folder / "m.gguf", [](uint64_t, uint64_t) { FAIL(); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("m.gguf: needs 477188.58 GB, the disk has "));
    EXPECT_THAT(error.what(), testing::HasSubstr(" GB free"));
  }
}

}  // namespace
}  // namespace sluice::gguf
