// Any bytes, however many, as a schema, as a pattern or as tools: a constraint or an Error, within its
// budget; then a short walk.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz/constraint_walk.h"
#include "text/json_text.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

std::unique_ptr<text::TokenConstraint> make(char kind, std::string_view rest) {
  text::AnswerPlace place = text::fuzzed_place(rest.size());
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

}  // namespace

/// The first byte chooses: p is a pattern, t are tools, all others a schema.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (const auto constraint = make(static_cast<char>(data[0]), rest))
      text::walk(*constraint, static_cast<uint32_t>(size));
  } catch (const Error&) {
    // what is no schema, or takes too much
  }
  return 0;
}
