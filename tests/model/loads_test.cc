// README.md's table of what loads, made from what does: the golden cases' files and the table of number
// formats.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "support/command.h"
#include "support/gguf_copy.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

/// Published models of each architecture, for who looks for his own.
const std::map<std::string, std::string> kModels = {
    {"deepseek2",
     "GLM-4.7-Flash, DeepSeek-V2 and V3, Youtu-LLM, Moonlight, Kanana-2, GigaChat3, JoyAI-LLM-Flash, "
     "Kimi-K2"},
    {"glm4moelite", "GLM-4.7-Flash in ollama's early files"},
    {"mistral4", "Mistral-Small-4"},
    {"llama", "Llama 2 to 3.3 and what shares their shape"},
    {"qwen2", "Qwen2, Qwen2.5"},
    {"qwen3", "Qwen3"},
    {"qwen3moe", "Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B"},
    {"qwen3next", "Qwen3-Next-80B-A3B, Qwen3-Coder-Next"},
    {"qwen35", "Qwen3.5 and 3.6, dense"},
    {"qwen35moe", "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B"},
    {"kimi-linear", "Kimi-Linear-48B-A3B"},
    {"gpt-oss", "gpt-oss-20b, gpt-oss-120b"},
    {"glm4moe", "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7; the text of GLM-4.5V and 4.6V"},
};

struct Row {
  bool latent = false, linear = false, dense = false, experts = false;
  int cases = 0;
};

std::map<std::string, Row> rows_of_cases() {
  std::map<std::string, Row> rows;
  for (const Case& one : kCases) {
    const model::Spec spec = model::Model::load(read_case(one).model).spec;
    Row& row = rows[spec.architecture];
    row.latent = spec.is_latent();
    row.linear = spec.linear_layers() > 0;
    row.dense = row.dense || spec.experts == 0;
    row.experts = row.experts || spec.experts > 0;
    ++row.cases;
  }
  return rows;
}

std::string formats(bool decoded) {
  std::string text;
  for (const quant::TypeInfo& type : quant::all_types()) {
    if ((type.decode != nullptr) == decoded) text += fmt::format("{}{}", text.empty() ? "" : " ", type.name);
  }
  return text;
}

/// Types that a converter's file has with a scale a matrix beside them.
std::string scaled_formats() {
  std::set<std::string> names;
  for (const Case& one : kCases) {
    if (one.oracle != nullptr) continue;  // a layout of our own
    const gguf::File file = gguf::File::open(read_case(one).model);
    for (const gguf::Tensor& tensor : file.tensors()) {
      const gguf::Tensor* scale =
          tensor.name.ends_with(".weight")
              ? file.tensor(std::string(tensor.name.substr(0, tensor.name.rfind('.'))) + ".scale")
              : nullptr;
      if (scale != nullptr) names.emplace(quant::type_info(tensor.type).name);
    }
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::string table() {
  std::string text = "| architecture | models | attention | layers | cases |\n|---|---|---|---|---|\n";
  for (const auto& [name, row] : rows_of_cases()) {
    const auto models = kModels.find(name);
    EXPECT_NE(models, kModels.end()) << name << ": whose is it?";
    text +=
        fmt::format("| `{}` | {} | {}{} | {} | {} |\n", name, models != kModels.end() ? models->second : "",
                    row.linear ? "linear and " : "", row.latent ? "latent" : "grouped",
                    row.dense && row.experts ? "dense or experts"
                    : row.experts            ? "experts"
                                             : "dense",
                    row.cases);
  }
  return text + "\nNumber formats: " + formats(true) +
         ".\nWith a scale of each whole matrix beside it (`.scale`): " + scaled_formats() +
         ".\nKnown and refused by name: " + formats(false) + ".\n";
}

TEST(Readme, SaysWhatLoads) {
  const std::string readme = read_file(source_path("README.md"));
  const std::string begin = "<!-- what loads -->\n", end = "<!-- end -->";
  const size_t from = readme.find(begin), to = readme.find(end, from);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  EXPECT_EQ(readme.substr(from + begin.size(), to - from - begin.size()), table())
      << "README.md between its marks is to be the table";
}

/// The message of the Error that the loader throws for a file of an architecture that nobody has.
TEST(Readme, EveryArchitectureThatLoadsHasACase) {
  GgufCopy copy(gguf::File::open(read_case(kCases[0]).model));
  for (gguf::WriteEntry& entry : copy.plan.metadata) {
    if (entry.key == "general.architecture") entry.value = std::string("nobody's");
  }
  const CommandFolder folder("loads");
  copy.write(folder.path("m.gguf"));
  std::string message;
  try {
    model::Model::load(folder.path("m.gguf"));
  } catch (const Error& error) {
    message = error.what();
  }
  std::set<std::string> named;
  const size_t list = message.find("expected one of ");
  ASSERT_NE(list, std::string::npos) << message;
  std::istringstream stream(message.substr(list));
  for (std::string part; std::getline(stream, part, '"') && std::getline(stream, part, '"');)
    named.insert(part);
  std::set<std::string> tested;
  for (const auto& [name, row] : rows_of_cases()) tested.insert(name);
  EXPECT_EQ(named, tested);
}

}  // namespace
}  // namespace sluice::test
