// Schemas as other programs write them (written_schemas.jsonl: pydantic, zod, typebox, openai's client and
// others, and some by hand): they compile, but for those that are named as refused, and what walks through
// them write is valid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/constraint_support.h"
#include "text/support.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

TEST(WrittenSchemas, AreTakenAndKept) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/text/written_schemas.jsonl");
  std::mt19937 random(91);
  std::string rows;
  std::vector<std::string> names;
  int taken = 0, refused = 0;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    const std::string name = row.at("by").get<std::string>() + ": " + row.at("name").get<std::string>();
    std::unique_ptr<TokenConstraint> constraint;
    std::string said;
    try {
      constraint = json_schema_constraint(row.at("schema"), json_model().place());
    } catch (const Error& error) {
      said = error.what();
    }
    if (const std::string why = row.value("refused", ""); !why.empty()) {
      ++refused;
      EXPECT_THAT(said, testing::HasSubstr(why)) << name;
      continue;
    }
    ++taken;
    EXPECT_EQ(said, "") << name;
    for (int i = 0; constraint && i < 3; ++i) {
      const Walk walk = random_walk(json_model(), *constraint->clone(), random);
      if (!walk.ended) continue;
      rows += Json{{"schema", row.at("schema")}, {"text", walk.text}}.dump() + "\n";
      names.push_back(name + ": " + walk.text);
    }
  }
  EXPECT_GE(taken, 140);
  EXPECT_LE(refused, 8);
  const TemporaryFile texts(rows);
  const std::vector<std::string> verdicts = python_lines("schema_oracle.py", "validate " + texts.path());
  ASSERT_EQ(verdicts.size(), names.size());
  EXPECT_GE(verdicts.size(), 300u);
  size_t unjudged = 0;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].starts_with("unjudged: "))
      ++unjudged;
    else
      EXPECT_EQ(verdicts[i], "ok") << names[i];
  }
  EXPECT_LE(unjudged, 9u);
}

}  // namespace
}  // namespace sluice::text
