// Constraints over real vocabularies: documents get through, and what masks cost. Prints the figures.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <ctime>
#include <nlohmann/json.hpp>

#include "text/constraint_support.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

/// The vocabulary of a file, or a skip's reason.
std::unique_ptr<Model> model_of(const std::string& path) {
  if (!std::ifstream(path)) return nullptr;
  const auto lines = python_lines("vocab_dump.py", path);
  const auto dump = nlohmann::json::parse(lines.at(0));
  const std::vector<std::string> tokens = dump.at("tokens"), merges = dump.at("merges");
  const std::vector<float> scores = dump.at("scores");
  Vocab vocab;
  vocab.model = merges.empty() ? "llama" : "gpt2";
  vocab.pre = dump.at("pre");
  vocab.tokens.assign(tokens.begin(), tokens.end());
  for (const int type : dump.at("types").get<std::vector<int>>())
    vocab.types.push_back(static_cast<TokenType>(type));
  vocab.merges.assign(merges.begin(), merges.end());
  vocab.scores = scores;
  vocab.space_in_front = false;
  return std::make_unique<Model>(vocab);
}

const Json& schema() {
  static const Json json = Json::parse(R"({"type": "object", "properties": {
    "title": {"type": "string", "maxLength": 100}, "year": {"type": "integer", "minimum": 1800, "maximum": 2100},
    "kind": {"enum": ["tale", "poem", "song"]},
    "authors": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
      "name": {"type": "string"}, "email": {"type": "string", "format": "email"}, "born": {"type": "string", "format": "date"}},
      "required": ["name"]}},
    "text": {"type": "string"}, "extra": {}}, "required": ["title", "kind", "authors"]})");
  return json;
}

const char* kDocument = R"({
  "title": "The mill by the river and the miller's three daughters",
  "year": 1884,
  "kind": "tale",
  "authors": [
    {"name": "Anna Müller", "email": "anna.mueller@example.org", "born": "1840-02-29"},
    {"name": "水车", "email": "m@x.org"},
    {"name": "A third one with a rather long name, said to have lived in the mill"}
  ],
  "text": "When the water is high the wheel hums, and when it is low the miller mends the sluice and waits.\n\"Why?\" asked the fox.",
  "extra": {"a": [1, 2.5, {"deep": [null, true, "x"]}], "b": "the end"}
})";

struct Cost {
  double make_us, first_us, again_us, worst_us;  ///< of a token: allowed() and accept()
  size_t tokens;
};

/// Time that this thread has had a CPU, in microseconds: what others do on the machine does not count.
double thread_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

Cost measure(const Model& model) {
  Cost cost{};
  double begin = thread_us();
  const auto constraint = json_schema_constraint(schema(), model.place());
  cost.make_us = thread_us() - begin;
  const auto tokens = model.tokenizer.encode(kDocument, false);
  cost.tokens = tokens.size();
  std::vector<uint32_t> bits = model.words();
  for (double* mean : {&cost.first_us, &cost.again_us}) {
    const auto follower = constraint->clone();
    for (const int32_t token : tokens) {
      begin = thread_us();
      follower->allowed(bits);
      EXPECT_TRUE(has(bits, token) && follower->accept(token)) << model.tokenizer.bytes(token, true);
      const double took = thread_us() - begin;
      *mean += took / static_cast<double>(tokens.size());
      cost.worst_us = std::max(cost.worst_us, took);
    }
    EXPECT_TRUE(follower->may_end());
  }
  return cost;
}

class RealVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(RealVocabulary, DocumentsGetThroughAtLittleCost) {
  const std::string name = GetParam();
  const std::string path = name == "fairy-tales" ? std::string(SLUICE_SOURCE_DIR) + "/models/fairy-tales.gguf"
                                                 : shared_data("vocab/ggml-vocab-" + name + ".gguf");
  const auto model = model_of(path);
  if (!model) GTEST_SKIP() << "no " << path;
  const Cost cost = measure(*model);
  fmt::print(
      "{}: {} tokens in the vocabulary; made in {:.1f} ms; a token of {}: {:.1f} us at first, {:.1f} us "
      "again, at worst {:.0f} us\n",
      name, model->tokenizer.size(), cost.make_us / 1000, cost.tokens, cost.first_us, cost.again_us,
      cost.worst_us);
  // 5% of a step of 4 ms, which is a fast one, on average.
  EXPECT_LT(cost.again_us, 200 * kSlowdown);
}

// Grammars that can be followed in ever more ways, or in many at once: the first tokens may take long, those
// behind them must not.
TEST_P(RealVocabulary, AmbiguousGrammarsTakeAShortTimeAToken) {
  const std::string name = GetParam();
  const auto model =
      model_of(name == "fairy-tales" ? std::string(SLUICE_SOURCE_DIR) + "/models/fairy-tales.gguf"
                                     : shared_data("vocab/ggml-vocab-" + name + ".gguf"));
  if (!model) GTEST_SKIP() << "no vocabulary " << name;
  std::string many = "root ::= (r0";
  for (int i = 1; i < 200; ++i) many += fmt::format(" | r{}", i);
  many += ")*\n";
  for (int i = 0; i < 200; ++i) many += fmt::format("r{} ::= [a-z ]{{1,{}}} [a-z ,.]\n", i, i + 1);
  const std::pair<const char*, std::string> grammars[] = {
      {"palindromes", "root ::= p\np ::= [a-z ] | [a-z ] p [a-z ]"},
      {"two of itself", "root ::= s\ns ::= [a-z ] s? s? | \"(\" s \")\""},
      {"nested repetitions", "root ::= (([a-z ]{1,5} [,. ]?){1,5} \"\\n\"?){1,50}"},
      {"rules of rules", "root ::= a*\na ::= b c? | [a-z]\nb ::= c a? | [a-z ]\nc ::= [a-z ] b? | [a-z] a?"},
      {"many alternatives", many}};
  for (const auto& [what, text] : grammars) {
    const auto constraint = gbnf_constraint(text, model->place());
    std::mt19937 random(3);
    std::vector<uint32_t> bits = model->words();
    double us = 0, first_us = 0;
    int tokens = 0;
    for (int walk = 0; walk < 4; ++walk) {
      const auto follower = constraint->clone();
      for (int i = 0; i < 50; ++i, ++tokens) {
        const double begin = thread_us();
        follower->allowed(bits);
        std::vector<int32_t> choices;
        for (size_t word = random() % bits.size(), n = 0; n < bits.size() && choices.size() < 32; ++n)
          for (uint32_t rest = bits[(word + n) % bits.size()]; rest != 0; rest &= rest - 1)
            choices.push_back(static_cast<int32_t>(32 * ((word + n) % bits.size())) + std::countr_zero(rest));
        ASSERT_FALSE(choices.empty()) << what;
        const int32_t token = choices[random() % choices.size()];
        if (model->tokenizer.ends_generation(token)) break;
        ASSERT_TRUE(follower->accept(token)) << what;
        (walk < 2 ? first_us : us) += thread_us() - begin;
      }
    }
    fmt::print("{}, {}: {:.0f} us a token at first, {:.0f} us then\n", name, what, 2 * first_us / tokens,
               2 * us / tokens);
    EXPECT_LT(2 * us / tokens, 400 * kSlowdown) << what;
  }
}

TEST_P(RealVocabulary, EverySchemasDocumentsAndWalks) {
  const std::string name = GetParam();
  const auto model =
      model_of(name == "fairy-tales" ? std::string(SLUICE_SOURCE_DIR) + "/models/fairy-tales.gguf"
                                     : shared_data("vocab/ggml-vocab-" + name + ".gguf"));
  if (!model) GTEST_SKIP() << "no vocabulary " << name;
  std::mt19937 random(5);
  std::string rows;
  size_t walks = 0;
  for (const std::string& line : python_lines("schema_oracle.py", "generate 5 25")) {
    const Json row = Json::parse(line);
    SCOPED_TRACE(row.at("schema").dump());
    const auto constraint = json_schema_constraint(row.at("schema"), model->place());
    for (const std::string text : row.at("documents"))
      EXPECT_TRUE(passes(*model, *constraint->clone(), text));
    const Walk walk = random_walk(*model, *constraint->clone(), random, 20);
    if (!walk.ended) continue;
    rows += Json{{"schema", row.at("schema")}, {"text", walk.text}}.dump() + "\n";
    ++walks;
  }
  const TemporaryFile file(rows);
  const auto verdicts = python_lines("schema_oracle.py", "validate " + file.path());
  EXPECT_GE(walks, 25u);
  ASSERT_EQ(verdicts.size(), walks);
  for (const std::string& verdict : verdicts) EXPECT_EQ(verdict, "ok");
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, RealVocabulary,
                         testing::Values("fairy-tales", "gpt-2", "deepseek-llm", "deepseek-coder",
                                         "llama-spm"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace sluice::text
