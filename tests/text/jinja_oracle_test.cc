// Small templates against jinja2 itself: the same text, or a failure on both sides.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/jinja/template.h"
#include "text/jinja_support.h"
#include "text/support.h"

namespace sluice::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

TEST(JinjaOracle, SameTextOrBothFail) {
  RenderOptions options;
  options.clock = fixed_clock;
  Json variables;
  int texts = 0, failures = 0;
  for (const std::string& line : python_lines("jinja_oracle.py", "")) {
    const Json row = Json::parse(line);
    if (row.contains("variables")) {
      variables = row.at("variables");
      continue;
    }
    const std::string source = row.at("source");
    SCOPED_TRACE(source);
    try {
      const std::string text = Template::parse(source).render(variables, options);
      if (row.contains("error"))
        ADD_FAILURE() << "gave " << text << "\nbut jinja2 says " << row.at("error");
      else
        EXPECT_EQ(text, row.at("text"));
      ++texts;
    } catch (const TemplateError& error) {
      EXPECT_TRUE(row.contains("error")) << error.what();
      ++failures;
    }
  }
  EXPECT_GE(texts, 200);
  EXPECT_GE(failures, 140);
}

}  // namespace
}  // namespace sluice::text::jinja
