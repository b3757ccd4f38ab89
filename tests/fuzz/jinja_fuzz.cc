// Any bytes as a template, over variables of every kind, within small limits: text or a TemplateError.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "text/jinja/template.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

nlohmann::ordered_json variables() {
  return nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "é 中 \u0000 \"x\""},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}],
    "add_generation_prompt": true, "n": 3, "f": 2.5, "s": "a,b", "x": null, "l": [1, "2", [3.0]], "d": {"k": "v", "1": 2}})");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json context = variables();
  text::jinja::RenderOptions options;
  options.limits.steps = 20'000;
  options.limits.depth = 200;
  options.limits.output_bytes = size_t{64} << 10;
  options.limits.memory_bytes = size_t{1} << 20;
  options.clock = [] { return std::tm{}; };
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const std::string out = text::jinja::Template::parse(source).render(context, options);
    CHECK(out.size() <= options.limits.output_bytes);
  } catch (const text::jinja::TemplateError& error) {
    CHECK(error.line() >= 1);
  }
  return 0;
}
