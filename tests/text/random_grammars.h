// Random schemas and GBNF grammars: small ones, with everything that counts.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace sluice::text {

class RandomSchemas {
 public:
  using Json = nlohmann::ordered_json;

  explicit RandomSchemas(uint32_t seed) : random_(seed) {}

  Json make(int depth) {
    switch (below(depth > 0 ? 9 : 5)) {
      case 0: return limited({{"type", "string"}}, "Length", 12);
      case 1: {
        static const std::vector<const char*> kPatterns = {
            "^(ab)+$",    "^[a-c]{2,5}x*$", "a|bb|ccc", "^(\\d{3}-)*\\d{2}$", "^[a-c ]*\\bx\\b[a-c !]*$",
            "^(?!a).*z$", "(^q$)|(^rr+$)"};
        return limited({{"type", "string"}, {"pattern", kPatterns[below(kPatterns.size())]}}, "Length", 9);
      }
      case 2: return {{"enum", Json::array({"a", "b", 1, Json::array({1, 2}), nullptr})}};
      case 3:
        return {{"type", "number"}, {"multipleOf", below(2) == 0 ? Json(0.25) : Json(3)}, {"minimum", -9}};
      case 4:
        return limited({{"type", "string"}, {"format", below(2) == 0 ? "email" : "date"}}, "Length", 30);
      case 5: return limited({{"type", "array"}, {"items", make(depth - 1)}}, "Items", 5);
      case 6:
        return limited(
            {{"type", "array"}, {"prefixItems", Json::array({make(0), make(depth - 1)})}, {"items", make(0)}},
            "Items", 5);
      case 7:
        return limited({{"type", "array"},
                        {"uniqueItems", true},
                        {"items", {{"enum", Json::array({1, 12, "a", nullptr})}}}},
                       "Items", 5);
      default: {
        Json object = {{"type", "object"},
                       {"properties", {{"a", make(depth - 1)}, {"b", make(0)}, {"c", make(0)}}}};
        if (below(2) == 0) object["required"] = Json::array({"b"});
        if (below(2) == 0) object["additionalProperties"] = make(0);
        if (below(3) == 0) object["propertyNames"] = {{"maxLength", 3}};
        return limited(object, "Properties", 4);
      }
    }
  }

 private:
  size_t below(size_t count) { return random_() % count; }
  Json limited(Json schema, const std::string& what, size_t most) {
    const size_t least = below(most);
    if (below(2) == 0) schema["min" + what] = least;
    if (below(2) == 0) schema["max" + what] = least + below(most);
    return schema;
  }

  std::mt19937 random_;
};

/// Grammars of literals, classes, groups and repetitions, of rules that call each other.
inline std::string random_gbnf(std::mt19937& random) {
  const auto below = [&](uint32_t count) { return random() % count; };
  const std::function<std::string(int)> part = [&](int depth) -> std::string {
    static const std::vector<const char*> kEnds = {"", "", "*", "+", "?", "{2}", "{2,3}", "{0,40}", "{3,}"};
    std::string out;
    switch (below(depth > 0 ? 5 : 3)) {
      case 0: out = "\"a\""; break;
      case 1: out = "[b-d \\n]"; break;
      case 2: out = fmt::format("r{}", below(3)); break;
      case 3: out = "(" + part(depth - 1) + " | " + part(depth - 1) + ")"; break;
      default: out = "(" + part(depth - 1) + " \",\" " + part(depth - 1) + ")";
    }
    return out + kEnds[below(static_cast<uint32_t>(kEnds.size()))];
  };
  std::string out = "root ::= " + part(3) + " \"x\"?\n";
  for (int i = 0; i < 3; ++i) out += fmt::format("r{} ::= \"{}\" {} | \"e\"\n", i, i, part(2));
  return out;
}

}  // namespace sluice::text
