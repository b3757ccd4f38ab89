// Structured output against llguidance: a text that gets through our masks is one that it admits, too. Texts
// are valid documents, what random walks wrote, and both with small damages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "text/constraint_support.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

std::string damaged(std::string text, std::mt19937& random) {
  static const std::string kBytes = "0123456789ab\"{}[]:,. -e\\ntrue";
  if (text.empty()) return "x";
  const size_t at = random() % text.size();
  if (static_cast<uint8_t>(text[at]) >= 0x80) return text + "]";
  const char byte = kBytes[random() % kBytes.size()];
  switch (random() % 3) {
    case 0: return text.erase(at, 1);
    case 1: return text.insert(at, 1, byte);
    default: text[at] = byte; return text;
  }
}

/// An environment variable's number.
int number_of(const char* variable, int standard) {
  const char* text = std::getenv(variable);
  return text != nullptr && std::atoi(text) > 0 ? std::atoi(text) : standard;
}

/// SLUICE_SEED: another seed; SLUICE_SCHEMAS: as many random schemas (150).
TEST(GrammarPeer, AdmitsWhatGetsThroughOurMasks) {
  const int seed = number_of("SLUICE_SEED", 27), schemas = number_of("SLUICE_SCHEMAS", 150);
  fmt::print("seed {}, {} random schemas\n", seed, schemas);
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::string rows;
  std::vector<std::string> lines;
  std::vector<bool> ours;
  const auto add = [&](const Json& schema, const TokenConstraint& constraint, const std::string& text) {
    lines.push_back(Json{{"schema", schema}, {"text", text}}.dump() + "\n");
    rows += lines.back();
    ours.push_back(static_cast<bool>(passes(json_model(), *constraint.clone(), text)));
  };
  for (const std::string& line :
       python_lines("schema_oracle.py", fmt::format("generate {} {}", seed, schemas))) {
    const Json row = Json::parse(line);
    const Json& schema = row.at("schema");
    const auto constraint = json_schema_constraint(schema, json_model().place());
    for (const std::string text : row.at("documents"))
      for (const std::string& one : {text, damaged(text, random), damaged(text, random)})
        add(schema, *constraint, one);
    const Walk walk = random_walk(json_model(), *constraint->clone(), random);
    if (walk.ended) add(schema, *constraint, walk.text);
  }
  const TemporaryFile file(rows);
  const std::vector<std::string> verdicts = python_lines("grammar_peer.py", file.path());
  if (!verdicts.empty() && verdicts[0].starts_with("skipped: ")) {
    fmt::print("skipped: GrammarPeer: {}\n", verdicts[0].substr(9));
    GTEST_SKIP() << verdicts[0];
  }
  ASSERT_EQ(verdicts.size(), ours.size());
  size_t both = 0, neither = 0, refused = 0, peer_alone = 0;
  std::string disputed;
  std::vector<std::string> disputed_texts;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i] == "refused") {
      ++refused;
    } else if (ours[i] && verdicts[i] == "no") {
      disputed += lines[i];
      disputed_texts.push_back(lines[i]);
    } else {
      ++(ours[i] ? both : verdicts[i] == "no" ? neither : peer_alone);
    }
  }
  const TemporaryFile second(disputed);
  const std::vector<std::string> judged = python_lines("schema_oracle.py", "validate " + second.path());
  ASSERT_EQ(judged.size(), disputed_texts.size());
  for (size_t i = 0; i < judged.size(); ++i) EXPECT_EQ(judged[i], "ok") << disputed_texts[i];
  fmt::print("{} texts: both {}, neither {}, llguidance alone {}, we and jsonschema {}, its refusals {}\n",
             ours.size(), both, neither, peer_alone, judged.size(), refused);
  EXPECT_GE(both, 2000u);
  EXPECT_GE(neither, 2000u);
  EXPECT_LE(judged.size(), ours.size() / 50);
}

}  // namespace
}  // namespace sluice::text
