// Any bytes, however many, as a schema, as a pattern, as tools or as a GBNF grammar: a constraint or an
// Error, within its budget; then a short walk, in which masks and accept() agree and nothing leads nowhere.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "text/json_model.h"
#include "text/json_text.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

std::unique_ptr<text::TokenConstraint> make(char kind, std::string_view rest) {
  const text::Model& model = text::json_model();
  if (kind == 'g') return text::gbnf_constraint(rest, model.place());
  if (kind == 'p')
    return text::json_schema_constraint({{"type", "string"}, {"pattern", std::string(rest)}}, model.place());
  if (!text::is_json(rest)) return nullptr;  // nested no deeper than a request may be
  const auto json = nlohmann::ordered_json::parse(rest, nullptr, false);
  if (json.is_discarded()) return nullptr;
  if (kind != 't') return text::json_schema_constraint(json, model.place());
  const text::CallRule rule{text::CallRule::When::Required, &json, "", true};
  return text::tool_call_constraint(
      model.place(&text::output_format(rest.size() % 2 ? "glm47" : "hermes"), true), rule);
}

void walk(text::TokenConstraint& constraint, uint32_t seed) {
  const text::Model& model = text::json_model();
  std::vector<uint32_t> bits = model.words();
  for (int step = 0; step < 30; ++step) {
    constraint.allowed(bits);
    std::vector<int32_t> choices;
    for (int32_t token = 0; token < model.tokenizer.size(); ++token)
      if (text::has(bits, token)) choices.push_back(token);
    CHECK(!choices.empty(), "no token leads on");
    seed = seed * 1664525 + 1013904223;
    const int32_t token = choices[(seed >> 8) % choices.size()];
    CHECK(constraint.accept(token));
    if (model.tokenizer.ends_generation(token)) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (const auto constraint = make(static_cast<char>(data[0]), rest))
      walk(*constraint, static_cast<uint32_t>(size));
  } catch (const Error&) {
  }
  return 0;
}
