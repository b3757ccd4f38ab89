// The filters of sluice debug: a line out for every line in, whatever the line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kTexts = SLUICE_SOURCE_DIR "/tests/text/";

class Debug : public testing::Test, public test::CommandFolder {
 protected:
  Debug() : CommandFolder("debug") {}

  /// Runs a filter on these lines in a folder; every line must be answered.
  std::vector<json> filter(const std::string& arguments, const std::string& input) {
    std::ofstream(path("in"), std::ios::binary) << input;
    const test::CommandResult result = run("debug " + arguments, path("in"));
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<json> lines;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

std::vector<json> fixture(const std::string& name, std::string& input) {
  std::ifstream file(kTexts + name);
  std::vector<json> rows;
  for (std::string line; std::getline(file, line);) {
    rows.push_back(json::parse(line));
    input += line + "\n";
  }
  return rows;
}

TEST_F(Debug, ParseOutput) {
  std::string input;
  const std::vector<json> rows = fixture("chat_output/glm47.jsonl", input);
  ASSERT_GE(rows.size(), 69u);
  for (const std::string chunk : {"", " --chunk 1", " --chunk 7 --format glm47"}) {
    const auto lines = filter("parse-output" + chunk, input);
    ASSERT_EQ(lines.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(lines[i], rows[i]["expected"]) << rows[i]["name"];
  }
  const auto plain = filter("parse-output --format plain", "{\"text\": \"<think>\"}");
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0]["content"], "<think>");
}

TEST_F(Debug, PreTokenize) {
  const auto lines = filter("pretokenize", R"({"pre": "glm4", "text": "Hello  world 12345", "more": 1}
{"pre": "no-such", "text": ""}
)");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], json::parse(R"({"pieces": ["Hello", " ", " world", " ", "123", "45"]})"));
  EXPECT_THAT(lines[1]["error"].get<std::string>(), HasSubstr("no-such"));
}

TEST_F(Debug, Tokenize) {
  const std::string model = SLUICE_SOURCE_DIR "/models/fairy-tales.gguf";
  const auto lines = filter("tokenize", json({{"vocab", model}, {"text", "Once upon a time"}}).dump() + "\n" +
                                            json({{"vocab", model}, {"text", ""}}).dump() + "\n" +
                                            R"({"vocab": "/no/such.gguf", "text": "a"})"
                                            "\n");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_GE(lines[0]["ids"].size(), 1u);
  EXPECT_EQ(lines[1], json::parse(R"({"ids": []})"));
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("/no/such.gguf"));
}

TEST_F(Debug, Template) {
  std::string input;
  std::vector<json> rows = fixture("templates/cases.jsonl", input);
  ASSERT_GE(rows.size(), 199u);
  std::ofstream(path("all"), std::ios::binary) << input << "{\"template\": \"no-such\"}\n";
  // The filter reads ./TEMPLATE.jinja.
  const std::string command =
      "cd " + kTexts + "templates && " SLUICE_BINARY " debug template < " + path("all") + " > " + path("out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream out(path("out"));
  std::string line;
  for (const json& row : rows) {
    ASSERT_TRUE(std::getline(out, line));
    const json result = json::parse(line);
    if (row.contains("expected")) {
      EXPECT_EQ(result, json({{"text", row["expected"]}})) << row["template"] << " " << row["name"];
    } else if (row["error_kind"] == "raise") {
      EXPECT_EQ(result, json({{"error", row["error"]}})) << row["template"] << " " << row["name"];
    } else {
      EXPECT_TRUE(result.contains("error")) << row["template"] << " " << row["name"];
    }
  }
  ASSERT_TRUE(std::getline(out, line));
  EXPECT_THAT(json::parse(line)["error"].get<std::string>(), HasSubstr("no-such.jinja"));
}

TEST_F(Debug, BadLinesAreAnsweredToo) {
  const std::string deep(100000, '[');
  const std::string input = "\nnot json\n[1]\n{}\n{\"text\": \"\xff\", \"pre\": \"glm4\"}\n{\"text\": 5}\n" +
                            deep + "\n{\"tools\": " + deep + std::string(100000, ']') +
                            ", \"text\": \"\"}\n{\"text\": \"a\", \"starts_in_thinking\": 1}\n" +
                            "{\"text\": \"a\", \"tools\": 7}\n";
  for (const char* filter_name : {"pretokenize", "tokenize", "template", "parse-output"}) {
    const auto lines = filter(filter_name, input);
    ASSERT_EQ(lines.size(), 10u) << filter_name;
    for (const json& line : lines) EXPECT_TRUE(line.contains("error")) << filter_name << ": " << line;
  }
  EXPECT_TRUE(filter("parse-output", "").empty());
  EXPECT_EQ(run("debug").code, 2);
  EXPECT_EQ(run("debug parse-output --format x").code, 1);
}

}  // namespace
}  // namespace sluice::cli
