// What a loader decides from keys and tensors: old layouts that are mended, and what is refused by name
// because it would change the arithmetic. That mended layouts give the right logits is golden_test.cc's
// business.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "model/model.h"
#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/golden.h"
#include "support/golden_cases.h"
#include "text/toy_vocab.h"

namespace sluice::test {
namespace {

using gguf::WriteEntry;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A file that a script writes (by default tools/oracles), to be changed and written again.
class Copy {
 public:
  explicit Copy(const std::string& name, const std::string& script = "tools/oracles/models.py")
      : copy_(gguf::File::open(made_file(script, name, name + ".gguf"))) {}

  Copy& set(const std::string& key, gguf::WriteValue value) {
    remove(key);
    copy_.plan.metadata.push_back({key, std::move(value)});
    return *this;
  }
  Copy& remove(const std::string& key) {
    std::erase_if(copy_.plan.metadata, [&](const WriteEntry& entry) { return entry.key == key; });
    return *this;
  }
  Copy& add_tensor(const std::string& name, const std::vector<int64_t>& shape,
                   quant::Type type = quant::Type::F32) {
    copy_.plan.tensors.push_back({name, type, shape});
    copy_.bytes.emplace_back(static_cast<size_t>(copy_.plan.tensors.back().bytes()));
    return *this;
  }
  Copy& add_floats(const std::string& name, const std::vector<float>& values) {
    add_tensor(name, {std::ssize(values)});
    std::memcpy(copy_.bytes.back().data(), values.data(), values.size() * sizeof(float));
    return *this;
  }
  Copy& rename_tensor(const std::string& name, const std::string& other) {
    for (gguf::WriteTensor& tensor : copy_.plan.tensors) {
      if (tensor.name == name) tensor.name = other;
    }
    return *this;
  }
  Copy& rename_tensors(const std::string& prefix, const std::string& other) {
    for (gguf::WriteTensor& tensor : copy_.plan.tensors) {
      if (tensor.name.starts_with(prefix)) tensor.name.replace(0, prefix.size(), other);
    }
    return *this;
  }
  Copy& remove_tensors(const std::string& prefix) {
    for (size_t i = copy_.plan.tensors.size(); i-- > 0;) {
      if (!copy_.plan.tensors[i].name.starts_with(prefix)) continue;
      copy_.plan.tensors.erase(copy_.plan.tensors.begin() + static_cast<std::ptrdiff_t>(i));
      copy_.bytes.erase(copy_.bytes.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return *this;
  }

  /// Several tensors as one, whose rows lie one below another.
  Copy& stack(const std::vector<std::string>& names, const std::string& as) {
    gguf::WriteTensor whole;
    std::vector<std::byte> bytes;
    for (const std::string& name : names) {
      const auto found = std::ranges::find(copy_.plan.tensors, name, &gguf::WriteTensor::name);
      const std::vector<std::byte>& part =
          copy_.bytes[static_cast<size_t>(found - copy_.plan.tensors.begin())];
      bytes.insert(bytes.end(), part.begin(), part.end());
      const int64_t before = whole.shape.empty() ? 0 : whole.shape.back();
      whole = *found;
      whole.shape.back() += before;
      remove_tensors(name);
    }
    whole.name = as;
    copy_.plan.tensors.push_back(whole), copy_.bytes.push_back(bytes);
    return *this;
  }

  model::Model load() const {
    const CommandFolder folder("layouts");
    copy_.write(folder.path("m.gguf"));
    return model::Model::load(folder.path("m.gguf"));  // the mapping outlives the name
  }
  /// The message of the Error that loading throws, empty when it throws none.
  std::string error() const {
    try {
      load();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  GgufCopy copy_;
};

TEST(Keys, UnknownOnesThatMayChangeTheArithmeticAreRefusedByName) {
  const std::string error = Copy("glm")
                                .set("deepseek2.attention.clamp_kqv", 0.1f)
                                .set("deepseek2.expert_group_scale", 0.5f)
                                .set("deepseek2.some_new_switch", true)
                                .error();
  EXPECT_THAT(error,
              AllOf(HasSubstr("3 problems"), HasSubstr("deepseek2.attention.clamp_kqv is not supported"),
                    HasSubstr("deepseek2.expert_group_scale is not supported"),
                    HasSubstr("deepseek2.some_new_switch is not supported")));
}

TEST(Keys, ThoseThatSayNothingNewAreNot) {
  EXPECT_EQ(Copy("glm")
                .set("deepseek2.attention.temperature_scale", 0.0f)
                .set("deepseek2.logit_scale", 1.0f)
                .set("deepseek2.attention.causal", true)
                .set("deepseek2.note", std::string("made by somebody"))
                .set("deepseek2.hidden_activation", std::string("silu"))
                .set("somebody.else", uint32_t{5})
                .error(),
            "");
}

TEST(Keys, FilesThatAreNoModelsAreRefusedByTheirType) {
  for (const char* type : {"adapter", "mmproj", "imatrix"}) {
    const std::string error = Copy("qwen3")
                                  .set("general.type", std::string(type))
                                  .remove("qwen3.block_count")
                                  .set("general.architecture", std::string("clip"))
                                  .error();
    EXPECT_THAT(error, AllOf(HasSubstr(fmt::format("general.type is \"{}\"", type)),
                             HasSubstr("expected a model"), Not(HasSubstr("problems"))));
  }
  EXPECT_EQ(Copy("qwen3").set("general.type", std::string("model")).error(), "");
}

/// GLM-4.5V's and 4.6V's text models say which columns turn by which of an image's positions.
TEST(Keys, SectionsOfPositionsAreNothingToATextWhereHalvesTurn) {
  const std::vector<int32_t> sections = {4, 6, 6, 0};
  const auto program = [](const Copy& copy) { return program::dump(copy.load().program); };
  EXPECT_EQ(program(Copy("glm4moe-q4_k_m", "tests/golden/make_moe.py")
                        .set("glm4moe.rope.dimension_sections", sections)),
            program(Copy("glm4moe-q4_k_m", "tests/golden/make_moe.py")));
  EXPECT_THAT(Copy("glm").set("deepseek2.rope.dimension_sections", sections).error(),
              HasSubstr("deepseek2.rope.dimension_sections is not supported"));
}

TEST(Keys, AnotherActivationIsRefused) {
  EXPECT_THAT(Copy("llama").set("llama.hidden_activation", std::string("gelu")).error(),
              HasSubstr("llama.hidden_activation is \"gelu\", expected \"silu\""));
}

TEST(Keys, AnArchitectureThatIsNotKnownIsNamedWithThoseThatAre) {
  EXPECT_THAT(Copy("llama").set("general.architecture", std::string("gemma9")).error(),
              AllOf(HasSubstr("\"gemma9\""), HasSubstr("\"deepseek2\""), HasSubstr("\"qwen3\"")));
}

TEST(Keys, MixturesAreOfSomeArchitecturesAlone) {
  EXPECT_THAT(Copy("llama").set("llama.expert_count", uint32_t{8}).error(),
              HasSubstr("llama.expert_count is not supported"));
  EXPECT_EQ(Copy("llama").set("llama.expert_count", uint32_t{0}).error(), "");
}

TEST(Keys, RopeThatIsNotDoneIsRefused) {
  EXPECT_THAT(
      Copy("glm").set("deepseek2.attention.key_length_mla", uint32_t{32}).error(),
      HasSubstr("deepseek2.attention.key_length_mla is 32, which leaves nothing beside 32 rope columns"));
  EXPECT_THAT(Copy("llama").set("llama.rope.dimension_count", uint32_t{34}).error(),
              HasSubstr("llama.rope.dimension_count is 34, expected 2 to 32"));
  EXPECT_THAT(Copy("llama").set("llama.rope.dimension_count", uint32_t{15}).error(),
              HasSubstr("llama.rope.dimension_count is 15, expected an even number"));
  EXPECT_THAT(Copy("qwen3-yarn").set("qwen3.rope.dimension_count", uint32_t{32}).error(),
              HasSubstr("\"yarn\", which is not supported where only 32 of 64 columns turn"));
  EXPECT_THAT(Copy("llama").set("llama.rope.scaling.type", std::string("longrope")).error(),
              HasSubstr("llama.rope.scaling.type is \"longrope\", expected \"none\", \"linear\" or"));
  EXPECT_THAT(Copy("llama")
                  .set("llama.rope.scaling.type", std::string("none"))
                  .set("llama.rope.scaling.factor", 4.0f)
                  .error(),
              HasSubstr("llama.rope.scaling.factor is not supported"));
  EXPECT_THAT(Copy("llama").set("llama.rope.scaling.factor", 0.5f).error(),
              HasSubstr("llama.rope.scaling.factor is 0.5, expected at least 1"));
}

TEST(Keys, AFactorAloneStretchesAllPairsAlike) {
  const auto first_and_last = [](const Copy& copy) {
    const program::RopeParams rope = copy.load().spec.rope_params;
    return std::pair(rope.frequency(0, 32), rope.frequency(15, 32));
  };
  const auto [first, last] = first_and_last(Copy("llama"));
  const std::pair quarter(first / 4, last / 4);
  EXPECT_EQ(first_and_last(Copy("llama-linear")), quarter);
  EXPECT_EQ(first_and_last(Copy("llama").set("llama.rope.scaling.factor", 4.0f)), quarter);
  EXPECT_EQ(first_and_last(Copy("llama").set("llama.rope.scale_linear", 4.0f)), quarter);
  for (const float none : {0.0f, 1.0f})
    EXPECT_EQ(first_and_last(Copy("llama").set("llama.rope.scaling.factor", none)), std::pair(first, last));
}

TEST(Keys, ColumnsOfAHeadThatDoNotTurnAreAFact) {
  const model::Model model = Copy("llama").set("llama.rope.dimension_count", uint32_t{16}).load();
  EXPECT_EQ(model.spec.rope, 16);
  EXPECT_EQ(model.spec.nope, 16);
  EXPECT_FLOAT_EQ(model.spec.attention_scale, 1 / std::sqrt(32.0f));
}

TEST(Keys, StepsOfATemperatureAreAsLongAsTheContextBeforeItsStretch) {
  EXPECT_EQ(Copy("mistral4").load().spec.temperature_length, 16);
  EXPECT_EQ(Copy("mistral4").remove("mistral4.attention.temperature_length").load().spec.temperature_length,
            16);
  EXPECT_EQ(Copy("mistral4").remove("mistral4.attention.temperature_scale").load().spec.temperature, 0);
  EXPECT_THAT(Copy("glm").set("deepseek2.attention.temperature_scale", 0.1f).error(),
              HasSubstr("deepseek2.attention.temperature_length is missing"));
}

TEST(Keys, HeadsThatDoNotShareAreRefused) {
  EXPECT_THAT(Copy("llama").set("llama.attention.head_count_kv", uint32_t{3}).error(),
              HasSubstr("llama.attention.head_count_kv is 3, which does not divide 8 heads"));
}

TEST(Tensors, UnknownOnesAreRefusedByName) {
  Copy copy("llama");
  copy.add_tensor("blk.1.attn_rel_b.weight", {8});
  EXPECT_THAT(copy.error(), HasSubstr("blk.1.attn_rel_b.weight: it is not known what this tensor is for"));
  copy.add_tensor("blk.1.attn_scale.weight", {256});
  EXPECT_THAT(copy.error(), HasSubstr("blk.1.attn_rel_b.weight and 1 more: it is not known"));
}

/// What a scale multiplies stands in the program beside it, whatever the weight's type.
TEST(Tensors, AScaleOfAWholeMatrixIsUsedWhereverItIs) {
  const model::Model model = Copy("llama").add_floats("blk.1.ffn_up.scale", {2}).load();
  EXPECT_THAT(program::dump(model.program),
              AllOf(HasSubstr("scale=blk.1.ffn_up.scale"), Not(HasSubstr("scale=blk.0"))));
}

TEST(Tensors, ScalesOfActivationsAreLeftAside) {
  const auto program = [](const Copy& copy) { return program::dump(copy.load().program); };
  EXPECT_EQ(program(Copy("llama").add_floats("blk.1.ffn_up.input_scale", {2})), program(Copy("llama")));
}

TEST(Tensors, AScaleThatMakesNoSenseIsRefusedByName) {
  const auto error = [](const char* name, const std::vector<float>& values) {
    return Copy("llama").add_floats(name, values).error();
  };
  EXPECT_THAT(error("blk.1.ffn_up.scale", {1, 2}), HasSubstr("blk.1.ffn_up.scale: shape [2], expected [1]"));
  for (const float number : {std::nanf(""), -HUGE_VALF}) {
    EXPECT_THAT(error("blk.1.ffn_up.scale", {number}),
                HasSubstr("blk.1.ffn_up.scale: holds what is no finite number"));
  }
  EXPECT_THAT(error("blk.1.ffn_uq.scale", {1}),
              HasSubstr("blk.1.ffn_uq.scale: the weight that it scales is not there"));
  EXPECT_THAT(error("blk.1.ffn_uq.input_scale", {1}), HasSubstr("the weight that it scales is not there"));
  EXPECT_THAT(error("token_embd.scale", {1}),
              HasSubstr("token_embd.scale: a scale of the whole tensor is not supported here"));
  Copy experts("glm4moe-nvfp4", "tests/golden/make_moe.py");
  EXPECT_EQ(experts.error(), "");
  EXPECT_THAT(experts.remove_tensors("blk.1.ffn_down_exps.scale")
                  .add_floats("blk.1.ffn_down_exps.scale", std::vector<float>(15, 1.0f))
                  .error(),
              HasSubstr("blk.1.ffn_down_exps.scale: shape [15], expected [16]"));
  Copy halves("llama");
  halves.add_tensor("blk.1.ffn_up.scale", {1}, quant::Type::F16);
  EXPECT_THAT(halves.error(), HasSubstr("blk.1.ffn_up.scale: type F16, expected F32"));
}

/// As converters leave out what is 1 everywhere.
TEST(Tensors, AScaleOfSomeMatricesAloneIsNoProblem) {
  for (const char* name : {"blk.1.ffn_gate_exps.scale", "blk.1.ffn_up_shexp.scale", "blk.0.ffn_down.scale"}) {
    Copy copy("glm4moe-nvfp4", "tests/golden/make_moe.py");
    EXPECT_EQ(copy.remove_tensors(name).error(), "") << name;
  }
}

TEST(Tensors, TablesOfAnglesAreLeftAside) {
  EXPECT_EQ(Copy("llama").add_tensor("blk.0.attn_rot_embd.weight", {16}).error(), "");
}

TEST(Tensors, AMergeWithUpRowsFirstIsRefused) {
  EXPECT_THAT(Copy("glm-fused")
                  .rename_tensor("blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_up_gate_exps.weight")
                  .error(),
              HasSubstr("blk.1.ffn_up_gate_exps.weight: has its up rows first"));
}

TEST(Tensors, SplitKeysAndValuesGoBeforeUnsplitOnes) {
  const model::Model model = Copy("glm").add_tensor("blk.0.attn_kv_b.weight", {128, 512}).load();
  EXPECT_THAT(program::dump(model.program),
              AllOf(HasSubstr("blk.0.attn_k_b.weight"), Not(HasSubstr("attn_kv_b"))));
}

/// As convert_hf_to_gguf.py --fuse-qkv leaves them, of models whose parts give transformers' logits.
TEST(Tensors, QueriesKeysAndValuesMayLieInOne) {
  const Golden golden = golden_case("glm4moe-q8_0-air", kMoe);
  Copy joined("glm4moe-q8_0-air", "tests/golden/make_moe.py");
  for (const char* block : {"blk.0.", "blk.2."}) {  // the others stay apart
    for (const char* end : {"weight", "bias"}) {
      const auto name = [&](const char* part) { return fmt::format("{}attn_{}.{}", block, part, end); };
      joined.stack({name("q"), name("k"), name("v")}, name("qkv"));
    }
  }
  const auto ref = backend::make_ref_backend();
  const auto cpu = backend::make_cpu_backend({.threads = 2});
  const model::Model model = joined.load();
  for (program::Backend* backend : {ref.get(), cpu.get()})
    EXPECT_EQ(logits_of(golden, model, *backend, 7), logits_of(golden, *backend, 7));
  EXPECT_THAT(Copy("qwen3").add_tensor("blk.0.attn_qkv.weight", {256, 700}).error(),
              HasSubstr("blk.0.attn_qkv.weight: shape [256, 700], expected [256, 768]"));
  // 384, 192 and 192 numbers: 768 are three blocks of 256, and 24 of 32.
  const auto with_bias = [](quant::Type type) {
    return Copy("qwen3")
        .add_tensor("blk.0.attn_qkv.weight", {256, 768})
        .add_tensor("blk.0.attn_qkv.bias", {768}, type)
        .remove_tensors("blk.0.attn_q.")
        .remove_tensors("blk.0.attn_k.")
        .remove_tensors("blk.0.attn_v.")
        .error();
  };
  EXPECT_THAT(with_bias(quant::Type::Q4_K),
              HasSubstr("blk.0.attn_qkv.bias: queries, keys and values part within blocks of type Q4_K"));
  EXPECT_EQ(with_bias(quant::Type::Q8_0), "");
}

TEST(Tensors, ABiasOrNormIsUsedWhereverItIs) {
  const model::Model model = Copy("llama").add_tensor("blk.1.attn_q.bias", {256}).load();
  EXPECT_THAT(program::dump(model.program),
              AllOf(HasSubstr("q_bias=blk.1.attn_q.bias"), Not(HasSubstr("q_bias=blk.0")),
                    Not(HasSubstr("q_bias=blk.2"))));
}

TEST(Prediction, BlocksAreNotOfTheTrunkHoweverTheyAreCounted) {
  EXPECT_EQ(Copy("glm-mtp").load().spec.layers, 3);
  EXPECT_EQ(Copy("glm-mtp").remove("deepseek2.nextn_predict_layers").load().spec.layers, 3);
  EXPECT_EQ(Copy("glm-mtp").set("deepseek2.block_count", uint32_t{3}).load().spec.layers, 3);
  EXPECT_EQ(Copy("glm-mtp").remove_tensors("blk.3.").load().spec.layers, 3);
}

TEST(Prediction, ABlockThatMakesNoSenseIsNamedAndTheTrunkStaysUsable) {
  model::Model missing = Copy("glm-mtp").remove_tensors("blk.3.attn_output").load();
  EXPECT_THAT(missing.add_prediction().value_or(""), HasSubstr("blk.3.attn_output.weight is missing"));
  EXPECT_FALSE(missing.prediction);
  EXPECT_EQ(missing.program.hidden_out(), program::kNoTensor);
  model::Model narrow =
      Copy("glm-mtp").remove_tensors("blk.3.nextn.hnorm").add_tensor("blk.3.nextn.hnorm.weight", {8}).load();
  EXPECT_THAT(narrow.add_prediction().value_or(""), HasSubstr("blk.3.nextn.hnorm.weight: shape [8]"));
  model::Model shares = Copy("glm-mtp").remove_tensors("blk.3.nextn.shared_head_norm").load();
  EXPECT_EQ(shares.add_prediction(), std::nullopt) << "the trunk's norm is its own";
}

TEST(Prediction, ABlockLeftOutOfTheTrunkIsMissing) {
  EXPECT_THAT(Copy("glm").remove_tensors("blk.2.").error(), HasSubstr("blk.2.attn_norm.weight is missing"));
}

TEST(Prediction, NoOtherBlockStandsAfterTheTrunk) {
  EXPECT_THAT(Copy("glm").set("deepseek2.block_count", uint32_t{2}).error(),
              HasSubstr("blk.2.attn_norm.weight and 17 more: it is not known what these tensors are for"));
}

TEST(Prediction, AloneItNeedsItsModel) {
  const char* said =
      "holds a block of multi-token prediction alone, which is not used yet; expected the model";
  EXPECT_THAT(Copy("glm-mtp-alone").error(), HasSubstr(said));
  EXPECT_THAT(Copy("glm-mtp-alone").remove("deepseek2.nextn_predict_layers").error(), HasSubstr(said));
  EXPECT_THAT(Copy("glm-mtp-alone").remove("deepseek2.attention.head_count").error(), HasSubstr(said));
  EXPECT_THAT(Copy("glm-mtp-alone")
                  .rename_tensors("blk.3.", "blk.0.")
                  .set("deepseek2.block_count", uint32_t{1})
                  .error(),
              HasSubstr(said));
}

TEST(Files, NeedNoSuffix) {
  const CommandFolder folder("blob");
  const std::string blob = folder.path("sha256-0f1e2d3c");
  std::filesystem::copy_file(made_file("tools/oracles/models.py", "llama", "llama.gguf"), blob);
  EXPECT_EQ(model::Model::load(blob).spec.layers, 3);
}

/// A vocabulary in the way of ollama's early GLM files.
gguf::WritePlan ollama_vocabulary(const std::string& architecture) {
  gguf::WritePlan plan;
  plan.metadata.push_back({"general.architecture", architecture});
  plan.metadata.push_back({"tokenizer.ggml.model", std::string("gpt2")});
  plan.metadata.push_back({"tokenizer.ggml.pre", std::string("no such thing")});
  plan.metadata.push_back({"tokenizer.ggml.tokens", text::ToyVocab().tokens});
  plan.metadata.push_back({"tokenizer.ggml.merges", std::vector<std::string>{}});
  plan.metadata.push_back({"tokenizer.ggml.eos_token_ids", std::vector<int32_t>{5, 17, 40}});
  return plan;
}

TEST(Vocabulary, OfOllamasEarlyFilesIsMended) {
  const CommandFolder folder("vocabulary");
  const std::string path = folder.path("v");
  gguf::Writer(path, ollama_vocabulary("glm4moelite")).finish();
  const text::Tokenizer tokenizer = model::load_tokenizer(gguf::File::open(path));
  EXPECT_TRUE(tokenizer.ends_generation(17));
  EXPECT_TRUE(tokenizer.ends_generation(40));
  EXPECT_FALSE(tokenizer.ends_generation(18));
  gguf::Writer(path, ollama_vocabulary("deepseek2")).finish();
  EXPECT_THROW(model::load_tokenizer(gguf::File::open(path)), Error) << "an unknown pre-tokenizer";
}

/// Nothing would be wrong with it but all that it says.
TEST(Vocabulary, WithoutMergesIsRefused) {
  const CommandFolder folder("merges");
  const std::string path = folder.path("v");
  const auto problem = [&](std::vector<std::string> tokens, std::vector<int32_t> types, const char* lacks) {
    gguf::WritePlan plan = ollama_vocabulary("glm4moelite");
    std::erase_if(plan.metadata, [&](const WriteEntry& entry) {
      return entry.key == lacks || entry.key.ends_with("tokens") || entry.key.ends_with("token_ids");
    });
    plan.metadata.push_back({"tokenizer.ggml.tokens", std::move(tokens)});
    if (!types.empty()) plan.metadata.push_back({"tokenizer.ggml.token_type", std::move(types)});
    gguf::Writer(path, plan).finish();
    try {
      model::load_tokenizer(gguf::File::open(path));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string missing = path + ": tokenizer.ggml.merges is missing", key = "tokenizer.ggml.merges";
  std::vector<std::string> tokens = text::ToyVocab().tokens;
  EXPECT_EQ(problem(tokens, {}, key.c_str()), "") << "bytes alone need none";
  tokens.push_back("he");
  EXPECT_THAT(problem(tokens, {}, key.c_str()), HasSubstr(missing));
  EXPECT_EQ(problem(tokens, {}, ""), "") << "an empty list says that there are none";
  std::vector<int32_t> types(257, 1);
  EXPECT_THAT(problem(tokens, types, key.c_str()), HasSubstr(missing));
  types.back() = 3;
  EXPECT_EQ(problem(tokens, types, key.c_str()), "") << "a control token needs none";
  EXPECT_THAT(problem(tokens, types, "tokenizer.ggml.model"), HasSubstr("tokenizer.ggml.model is missing"));
}

/// Models with linear attention, whose layers have it by these keys and tensors.
Copy hybrid(const std::string& name) { return Copy(name, "tests/golden/make_hybrid.py"); }

TEST(Hybrids, SayWhichLayersAreLinear) {
  const auto linear = [](const model::Model& model) { return model.spec.linear; };
  const std::vector<bool> every_second{true, false, true, false};
  EXPECT_EQ(linear(hybrid("qwen3next-q4_k_m").load()), every_second);
  EXPECT_EQ(linear(hybrid("qwen3next-q4_k_m")
                       .remove("qwen3next.full_attention_interval")
                       .set("qwen3next.attention.recurrent_layers", std::vector<int32_t>{1, 0, 1, 0})
                       .load()),
            every_second);
  EXPECT_EQ(linear(hybrid("kimi-linear-q4_k_m").load()), (std::vector<bool>{true, true, false, true}));
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").set("qwen3next.full_attention_interval", uint32_t{5}).error(),
              HasSubstr("qwen3next.block_count is 4: every layer has linear attention"));
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").remove("qwen3next.block_count").error(),
              AllOf(HasSubstr("qwen3next.block_count is missing"), Not(HasSubstr("every layer"))));
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").set("qwen3next.full_attention_interval", uint32_t{1}).error(),
              HasSubstr("blk.0.attn_q.weight is missing"));
  EXPECT_THAT(hybrid("kimi-linear-q4_k_m").set("kimi-linear.attention.head_count_kv", uint32_t{1}).error(),
              HasSubstr("attention.head_count_kv is no array"));
}

TEST(Hybrids, WhoseHeadsMakeNoSenseAreRefused) {
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").set("qwen3next.ssm.time_step_rank", uint32_t{3}).error(),
              HasSubstr("ssm.time_step_rank is 3, which 2 groups do not divide"));
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").set("qwen3next.ssm.inner_size", uint32_t{255}).error(),
              HasSubstr("ssm.inner_size is 255, which 4 heads do not divide"));
  EXPECT_THAT(hybrid("qwen3next-q4_k_m").set("qwen3next.ssm.inner_size", uint32_t{1} << 20).error(),
              HasSubstr("expected at most 1024 columns a head"));
  EXPECT_THAT(hybrid("kimi-linear-q4_k_m").set("kimi-linear.kda.head_dim", uint32_t{4096}).error(),
              HasSubstr("kimi-linear.kda.head_dim is 4096, expected 1 to 1024"));
  EXPECT_THAT(hybrid("qwen35moe-q4_k_m").set("qwen35moe.ssm.conv_kernel", uint32_t{5}).error(),
              HasSubstr("blk.0.ssm_conv1d.weight: shape"));
}

TEST(Hybrids, TheyAloneHaveGatesBehindTheirQueries) {
  EXPECT_THAT(Copy("llama")
                  .remove_tensors("blk.0.attn_q.weight")
                  .add_tensor("blk.0.attn_q.weight", {256, 512})
                  .error(),
              HasSubstr("blk.0.attn_q.weight: shape [256, 512], expected [256, 256]"));
}

TEST(Hybrids, LayoutsThatAreNotKnownAreRefused) {
  EXPECT_THAT(
      hybrid("qwen3next-q4_k_m").rename_tensor("blk.0.attn_qkv.weight", "blk.0.ssm_in.weight").error(),
      HasSubstr("blk.0.ssm_in.weight: queries, keys, values and gates in turns"));
  EXPECT_THAT(hybrid("qwen35moe-q4_k_m")
                  .rename_tensor("blk.0.ffn_gate_inp_shexp.weight", "blk.0.ffn_gate_inp_other.weight")
                  .error(),
              HasSubstr("blk.0.ffn_gate_inp_other.weight: it is not known what this tensor is for"));
}

}  // namespace
}  // namespace sluice::test
