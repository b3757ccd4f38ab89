// Names of models and files, and which of a repository's files is meant.
#include "hub/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "hub/names.h"

namespace sluice::hub {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> quants(const std::vector<Model>& models) {
  std::vector<std::string> out;
  for (const Model& model : models) out.push_back(model.quant);
  return out;
}

TEST(Names, OfModels) {
  const ModelName name = ModelName::parse("unsloth/GLM-4.7-Flash-GGUF:UD-Q4_K_XL");
  EXPECT_EQ(name.repository.user, "unsloth");
  EXPECT_EQ(name.repository.name, "GLM-4.7-Flash-GGUF");
  EXPECT_EQ(name.quant, "UD-Q4_K_XL");
  EXPECT_EQ(ModelName::parse("a/b").quant, "");
  EXPECT_EQ(ModelName::parse("a/b:latest").quant, "");
  EXPECT_EQ(ModelName::parse("a/b:sub/c.gguf").quant, "sub/c.gguf");
  for (const char* wrong :
       {"", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", "a/b:", "a/b:../c", "a/b:/c", "a/b c", "a/b?x",
        "-a/b", "a/b--c", "a/b:q\nr", "https://huggingface.co/a/b"}) {
    EXPECT_THROW(ModelName::parse(wrong), UsageError) << wrong;
  }
}

TEST(Names, OfFilesThatAStrangerTells) {
  for (const char* safe : {"a.gguf", "sub/a.gguf", "..a", "a..b/c", "Größe.gguf", "a b"})
    EXPECT_TRUE(is_safe_path(safe)) << safe;
  for (const char* unsafe :
       {"", "/a", "../a", "a/../b", "a/..", ".", "a//b", "a/", "./a", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_safe_path(unsafe)) << unsafe;
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(300, 'a')));
  std::string deep = "a";
  for (int i = 0; i < 20; ++i) deep += "/a";
  EXPECT_FALSE(is_safe_path(deep));
}

TEST(Models, AreJoinedFromPartsAndKnownByTheEndsOfNames) {
  const std::vector<Model> models = models_of({{"M-Q8_0.gguf", 80, ""},
                                               {"M.IQ4_XS.gguf", 41, ""},
                                               {"M-UD-Q4_K_XL.gguf", 44, ""},
                                               {"BF16/M-BF16-00002-of-00002.gguf", 70, ""},
                                               {"BF16/M-BF16-00001-of-00002.gguf", 90, ""},
                                               {"M-Q6_K-00001-of-00002.gguf", 60, ""},  // a part is missing
                                               {"mmproj-M-F16.gguf", 5, ""},
                                               {"M-imatrix.gguf", 4, ""},
                                               {"mtp-M-Q4_K_M.gguf", 3, ""},
                                               {"MTP/M-Q8_0.gguf", 3, ""},
                                               {"x/MTP-M-BF16.gguf", 3, ""},
                                               {"M-MTP-Q5_K_M.gguf", 50, ""},  // with its block, a model
                                               {"M-MXFP4_MOE.gguf", 43, ""},
                                               {"q4_k_m.gguf", 42, ""},
                                               {"tale.gguf", 7, ""},
                                               {"README.md", 1, ""}});
  EXPECT_THAT(quants(models),
              ElementsAre("tale", "IQ4_XS", "Q4_K_M", "MXFP4_MOE", "UD-Q4_K_XL", "Q5_K_M", "Q8_0", "BF16"));
  EXPECT_EQ(models.back().bytes(), 160);
  // Not every end that begins like a format is one, and capitals do not matter.
  EXPECT_THAT(quants(models_of({{"M-F16-x.gguf", 1, ""},
                                {"M-Qwen.gguf", 2, ""},
                                {"M-TQ1_0-00001-OF-00001.GGUF", 3, ""},
                                {"M-ud-fp16.gguf", 4, ""}})),
              ElementsAre("M-F16-x", "M-Qwen", "TQ1_0", "UD-FP16"));
  // A folder of one's own may be called so.
  EXPECT_THAT(quants(models_of({{"/srv/mtp/M-Q8_0.gguf", 80, ""}, {"/srv/mtp/mtp-M-Q8_0.gguf", 3, ""}})),
              ElementsAre("Q8_0"));
  ASSERT_EQ(models.back().files.size(), 2u);
  EXPECT_EQ(models.back().files.front().path, "BF16/M-BF16-00001-of-00002.gguf");
}

class Choice : public testing::Test {
 protected:
  std::string chosen(const std::string& name, const Taste& taste = {}) {
    return choose(models, ModelName::parse(name), taste).files.front().path;
  }
  std::string problem(const std::string& name) {
    try {
      return "chose " + chosen(name);
    } catch (const Error& error) {
      return error.what();
    }
  }
  std::vector<Model> models = models_of({{"M-Q4_K_M.gguf", 40, ""},
                                         {"M-Q8_0.gguf", 80, ""},
                                         {"M-IQ2_XXS.gguf", 20, ""},
                                         {"M-UD-Q2_K_XL.gguf", 15, ""},
                                         {"x/M-Q5_K_M-00001-of-00002.gguf", 25, ""},
                                         {"x/M-Q5_K_M-00002-of-00002.gguf", 25, ""}});
};

TEST_F(Choice, IsWhatTheNameSays) {
  EXPECT_EQ(chosen("u/r:Q8_0"), "M-Q8_0.gguf");
  EXPECT_EQ(chosen("u/r:q8_0"), "M-Q8_0.gguf");
  EXPECT_EQ(chosen("u/r:Q2_K_XL"), "M-UD-Q2_K_XL.gguf");
  EXPECT_EQ(chosen("u/r:q5_k_m"), "x/M-Q5_K_M-00001-of-00002.gguf");
  EXPECT_EQ(chosen("u/r:M-IQ2_XXS.gguf"), "M-IQ2_XXS.gguf");
  EXPECT_EQ(chosen("u/r:x/M-Q5_K_M-00001-of-00002.gguf"), "x/M-Q5_K_M-00001-of-00002.gguf");
  EXPECT_EQ(chosen("u/r:M-Q5_K_M.gguf"), "x/M-Q5_K_M-00001-of-00002.gguf");
}

// The choice that llama.cpp makes, too: it looks for the format with a dash or dot behind it.
TEST_F(Choice, KnowsFormatsOfFoldersAndWithinNames) {
  models = models_of({{"Q4_K_M/model.gguf", 40, ""},
                      {"M-Q8_0/model-00001-of-00002.gguf", 40, ""},
                      {"M-Q8_0/model-00002-of-00002.gguf", 40, ""},
                      {"BF16/M-Q6_K.gguf", 60, ""}});
  EXPECT_THAT(quants(models), ElementsAre("Q4_K_M", "Q6_K", "Q8_0"));
  EXPECT_EQ(chosen("u/r"), "Q4_K_M/model.gguf");
  EXPECT_EQ(chosen("u/r:q8_0"), "M-Q8_0/model-00001-of-00002.gguf");
  EXPECT_THAT(problem("u/r:model.gguf"), HasSubstr("2 files are model.gguf: Q4_K_M/model.gguf, M-Q8_0/"));
  models = models_of(
      {{"M-Q4_K_M-imat.gguf", 40, ""}, {"M.Q4_K_S.imat.gguf", 30, ""}, {"M-Q8_0-imat.gguf", 80, ""}});
  EXPECT_EQ(chosen("u/r"), "M-Q4_K_M-imat.gguf");
  EXPECT_EQ(chosen("u/r:q4_k_s"), "M.Q4_K_S.imat.gguf");
  EXPECT_EQ(chosen("u/r:M-Q8_0-imat"), "M-Q8_0-imat.gguf");
  EXPECT_THAT(problem("u/r:Q4_K"), HasSubstr("no Q4_K; there are"));
  EXPECT_THAT(problem("u/r:imat"), HasSubstr("no imat; there are"));
  models = models_of({{"M-Q4_K_M-imat.gguf", 40, ""}, {"M-Q4_K_M.gguf", 41, ""}});
  EXPECT_EQ(chosen("u/r:Q4_K_M"), "M-Q4_K_M.gguf");
}

TEST_F(Choice, IsTheUsualOneOrTheBestThatFits) {
  EXPECT_EQ(chosen("u/r"), "M-Q4_K_M.gguf");
  const auto no_iq = [](std::string_view quant) { return !quant.starts_with("IQ"); };
  EXPECT_EQ(chosen("u/r", {39, {}}), "M-IQ2_XXS.gguf");
  EXPECT_EQ(chosen("u/r", {39, no_iq}), "M-UD-Q2_K_XL.gguf");
  EXPECT_EQ(chosen("u/r", {1, {}}), "M-Q4_K_M.gguf");  // nothing fits: loading says so
  models.erase(std::ranges::find(models, "Q4_K_M", &Model::quant));
  EXPECT_EQ(chosen("u/r"), "M-Q8_0.gguf");
  EXPECT_EQ(chosen("u/r", {60, {}}), "x/M-Q5_K_M-00001-of-00002.gguf");
  EXPECT_EQ(chosen("u/r", {1, {}}), "M-UD-Q2_K_XL.gguf");
}

TEST_F(Choice, SaysWhatThereIs) {
  EXPECT_EQ(
      problem("u/r:Q3_K"),
      "u/r: no Q3_K; there are UD-Q2_K_XL (15 B), IQ2_XXS (20 B), Q4_K_M (40 B), Q5_K_M (50 B), Q8_0 (80 B)");
  EXPECT_THAT(problem("u/r:none.gguf"), HasSubstr("no file none.gguf; there are"));
  models = models_of({{"A-Q4_K_M.gguf", 1, ""}, {"B-Q4_K_M.gguf", 2, ""}});
  EXPECT_THAT(problem("u/r:Q4_K_M"),
              HasSubstr("2 files are Q4_K_M: A-Q4_K_M.gguf, B-Q4_K_M.gguf; name one as u/r:FILE"));
  EXPECT_EQ(chosen("u/r:B-Q4_K_M.gguf"), "B-Q4_K_M.gguf");
  models.clear();
  EXPECT_EQ(problem("u/r"), "u/r: holds no GGUF model");
}

}  // namespace
}  // namespace sluice::hub
