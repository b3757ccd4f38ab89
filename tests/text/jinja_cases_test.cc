// Published chat templates against what transformers makes of them: tests/text/templates/cases.jsonl.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/jinja/template.h"
#include "text/jinja_support.h"

namespace sluice::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = SLUICE_SOURCE_DIR "/tests/text/templates/";

std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

Json variables_of(const Json& row) {
  Json out = {{"messages", row.at("messages")},
              {"tools", row.value("tools", Json())},
              {"documents", nullptr},
              {"add_generation_prompt", false}};
  for (const auto& [name, value] : row.at("kwargs").items()) out[name] = value;
  return out;
}

void check_case(const Json& row) {
  SCOPED_TRACE(row.at("template").get<std::string>() + " " + row.at("name").get<std::string>());
  RenderOptions options;
  options.clock = fixed_clock;
  std::string text;
  try {
    const Template parsed =
        Template::parse(whole_file(kFolder + row.at("template").get<std::string>() + ".jinja"));
    text = parsed.render(variables_of(row), options);
  } catch (const TemplateError& error) {
    ASSERT_TRUE(row.contains("error")) << error.what();
    EXPECT_EQ(error.raised(), row.at("error_kind") == "raise") << error.what();
    if (error.raised()) {
      EXPECT_EQ(error.message(), row.at("error"));
    }
    EXPECT_GE(error.line(), 1);
    return;
  }
  ASSERT_FALSE(row.contains("error")) << "expected: " << row.at("error") << "\ngot: " << text;
  EXPECT_EQ(text, row.at("expected"));
}

TEST(ChatTemplates, RenderAsTransformersRendersThem) {
  std::ifstream file(kFolder + "cases.jsonl", std::ios::binary);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) check_case(Json::parse(line));
  EXPECT_EQ(count, 215);
}

}  // namespace
}  // namespace sluice::text::jinja
