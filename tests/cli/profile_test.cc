// sluice profile as a user meets it: figures that add up, files that other programs open, verdicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::HasSubstr;

class Profile : public testing::Test, public test::CommandFolder {
 protected:
  Profile() : CommandFolder("profile") {}
};

TEST_F(Profile, RowsAndGapsAddUpToTheWallTimeWithinTwoPercent) {
  const CommandResult result = run("profile -p 64 -n 12 -d 32 -t 2 --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json file = json::parse(result.out);
  ASSERT_EQ(file["reports"].size(), 2u);
  EXPECT_EQ(file["reports"][0]["test"], "pp64 @ d32");
  EXPECT_EQ(file["reports"][1]["test"], "tg12 @ d32");
  for (const json& report : file["reports"]) {
    double rows = 0, layers = 0;
    for (const json& row : report["rows"]) {
      rows += row["us"].get<double>();
      EXPECT_THAT(row["file"].get<std::string>(), testing::StartsWith("src/backend/cpu/"));
      EXPECT_GT(row["line"].get<int>(), 1);
    }
    for (const json& row : report["layers"]) layers += row["us"].get<double>();
    const double wall = report["wall_us"].get<double>();
    EXPECT_NEAR(rows + report["gaps_us"].get<double>(), wall, 0.02 * wall);
    EXPECT_NEAR(rows, layers, 1e-6 * rows);
    EXPECT_GT(report["untimed_us"].get<double>(), 0);
    EXPECT_EQ(report["workers"], 2);
  }
}

TEST_F(Profile, PeoplesTableHasLayersWeightsAndSources) {
  EXPECT_THAT(run("profile -n 2 --layers").out, HasSubstr("3.mla_values"));
  EXPECT_THAT(run("profile -n 2 --backend ref --weights --md").out, HasSubstr("matmul attn_kv_a_mqa"));
  EXPECT_THAT(run("profile -n 2 --with-source").out, HasSubstr("(src/backend/cpu/ops/mla_values.cc:"));
  EXPECT_THAT(run("profile -n 2 --backend ref --batch 3").out, HasSubstr("different experts a layer"));
  EXPECT_EQ(run("profile -n 2 --layers --weights").code, 2);
  EXPECT_EQ(run("profile -n 0").code, 2);
}

TEST_F(Profile, RecordsAreEveryOp) {
  const CommandResult result = run("profile -n 1 --records --json -");
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out)["reports"][0];
  EXPECT_EQ(report["rows"].size(), report["records"].get<size_t>());
  EXPECT_EQ(report["rows"][0]["op"], "embed");
  EXPECT_EQ(report["rows"][1]["shape"], "320 F32");
  EXPECT_EQ(run("profile -n 1 --records --layers").code, 2);
}

TEST_F(Profile, DiffExitsWithThreeOnARegression) {
  ASSERT_EQ(run("profile -n 8 --json " + path("a.json")).code, 0);
  json slow = json::parse(read_file(path("a.json")));
  for (json& row : slow["reports"][0]["rows"]) row["us"] = 2 * row["us"].get<double>() + 1000;
  const std::string text = slow.dump();
  write_file(path("b.json"), std::as_bytes(std::span(text)));
  const auto diff = [&](const std::string& arguments) { return run("profile diff " + arguments); };
  const std::string a = path("a.json"), b = path("b.json");
  EXPECT_EQ(diff(a + " " + a + " --fail-above 1").code, 0);
  EXPECT_EQ(diff(a + " " + b).code, 0);
  const CommandResult worse = diff(a + " " + b + " --fail-above 50");
  EXPECT_EQ(worse.code, 3);
  EXPECT_THAT(worse.out, HasSubstr("slower"));
  EXPECT_THAT(worse.err, HasSubstr("sluice: slower by"));
  EXPECT_EQ(diff(b + " " + a + " --fail-above 1").code, 0);
  EXPECT_EQ(diff(a + " " + path("none.json")).code, 1);
  EXPECT_EQ(diff(a).code, 2);
}

// Read by a program of its own, by the rules of the format (tests/cli/trace_oracle.py).
TEST_F(Profile, TraceFollowsTheTraceEventFormat) {
  ASSERT_EQ(run("profile -n 2 -t 2 --trace " + path("trace.json")).code, 0);
  const std::string command = std::string(SLUICE_PYTHON " " SLUICE_SOURCE_DIR "/tests/cli/trace_oracle.py ") +
                              path("trace.json") + " > " + path("read") + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(path("read"));
  const json counts = json::parse(read_file(path("read")));
  EXPECT_EQ(counts["steps"], 2);
  EXPECT_EQ(counts["tracks"], (json{"steps", "worker 0", "worker 1"}));
  EXPECT_EQ(counts["slices"]["0.mla_values"], 2 * 2);  // steps x workers
  EXPECT_EQ(counts["slices"]["embed"], 2 * 2);
}

TEST_F(Profile, PageIsDrawnByABrowser) {
  ASSERT_EQ(run("profile -n 4 --html " + path("page.html")).code, 0);
  EXPECT_THAT(read_file(path("page.html")), HasSubstr("Roofline"));
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) {
    std::cout << "skipped: Profile.PageIsDrawnByABrowser: chromium is not installed\n";
    GTEST_SKIP() << "chromium is not installed";
  }
  // What the browser made of the page: every plot has a size, and no text lies outside of its plot.
  const std::string probe =
      "<script>addEventListener('load',()=>{let bad=0,plots=0;for(const s of "
      "document.querySelectorAll('svg')){plots++;"
      "const r=s.getBoundingClientRect();if(r.width<100||r.height<20)bad++;for(const t of "
      "s.querySelectorAll('text')){"
      "const b=t.getBoundingClientRect();if(b.left<r.left-2||b.right>r.right+2||b.bottom>r.bottom+2)bad++;}}"
      "document.title='plots '+plots+' bad '+bad;});</script>";
  const std::string page = read_file(path("page.html")) + probe;
  write_file(path("probed.html"), std::as_bytes(std::span(page)));
  const std::string command = "HOME=" + path("") +
                              " chromium --headless --no-sandbox --disable-gpu --dump-dom file://" +
                              path("probed.html") + " > " + path("dom") + " 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(read_file(path("dom")), HasSubstr("<title>plots 4 bad 0</title>"));
}

}  // namespace
}  // namespace sluice::cli
