// Any bytes, however many, as a schema, as a pattern, as tools or as a GBNF grammar: a constraint or an
// Error, within its budget; then a short walk, in which masks and accept() agree and nothing leads nowhere.
#include <bit>
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

/// A vocabulary of few pairs: what a mask costs grows with its tokens, what can go wrong does not.
const text::Model& fuzzed_model() {
  static const text::Model model(text::json_vocab(40).vocab());
  return model;
}

std::unique_ptr<text::TokenConstraint> make(char kind, std::string_view rest) {
  text::AnswerPlace place = fuzzed_model().place();
  // In proportion to its size, which makes a small input as likely to be cut off as a large one.
  if (rest.size() < 2'000) place.most_steps = 20'000 + 40 * static_cast<int64_t>(rest.size());
  if (kind == 'g') return text::gbnf_constraint(rest, place);
  if (kind == 'p')
    return text::json_schema_constraint({{"type", "string"}, {"pattern", std::string(rest)}}, place);
  if (!text::is_json(rest)) return nullptr;  // nested no deeper than a request may be
  const auto json = nlohmann::ordered_json::parse(rest, nullptr, false);
  if (json.is_discarded()) return nullptr;
  if (kind != 't') return text::json_schema_constraint(json, place);
  const text::CallRule rule{text::CallRule::When::Required, &json, "", true};
  place.format = &text::output_format(rest.size() % 2 ? "glm47" : "hermes");
  place.starts_in_thinking = rest.size() % 4 < 2;
  return text::tool_call_constraint(place, rule);
}

void walk(text::TokenConstraint& constraint, uint32_t seed) {
  const text::Model& model = fuzzed_model();
  std::vector<uint32_t> bits = model.words();
  std::vector<int32_t> choices;
  for (int step = 0; step < 16; ++step) {
    constraint.allowed(bits);
    choices.clear();
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint32_t rest = bits[word]; rest != 0; rest &= rest - 1)
        choices.push_back(static_cast<int32_t>(32 * word) + std::countr_zero(rest));
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
