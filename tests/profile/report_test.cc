// Reports: sums, medians and bounds of known readings; JSON, differences, traces and pages made of them.
#include "profile/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "profile/report_html.h"
#include "profile/report_json.h"
#include "profile/report_text.h"
#include "profile/svg.h"
#include "profile/trace.h"
#include "program/builder.h"

namespace sluice::profile {
namespace {

using testing::HasSubstr;

/// embed, then two norms, in layers -1, 0 and 1.
program::Program two_norms() {
  program::Program program;
  program::Builder b(program);
  const auto table = b.weight("token_embd.weight", quant::Type::F32, 1, 10, 64);
  const auto first = b.weight("blk.0.attn_norm.weight", quant::Type::F32, 1, 1, 64);
  const auto second = b.weight("blk.1.attn_norm.weight", quant::Type::F32, 1, 1, 64);
  const auto x = b.embed(table);
  b.set_layer(0);
  const auto y = b.rms_norm(x, first, 1e-5f);
  b.set_layer(1);
  b.rms_norm(y, second, 1e-5f);
  return program;
}

Sample sample(int64_t embed, int64_t first, int64_t second, int64_t gap) {
  return {{{embed, first, second}, {gap, 0, gap, gap}, 0}, embed + first + second + 3 * gap + 10};
}

Report report_of(const program::Program& program, const std::vector<Sample>& samples, Group group = Group::Op,
                 double bandwidth = 1e9) {
  const std::vector<program::BoundKernel> kernels = {
      {"a", "src/a.cc", 1}, {"b: 16 x 4", "src/b.cc", 2}, {"c", "src/c.cc", 3}};
  program::Peaks peaks;
  peaks.bytes_per_second = bandwidth;
  peaks.flops = 1e9;
  Report report = make_report({program, kernels, samples, {9000, 9500, 9900}, {}, peaks, group});
  report.test = "tg3";
  return report;
}

const std::vector<Sample> kSamples = {sample(1000, 2000, 5000, 100), sample(1000, 9000, 9000, 100),
                                      sample(1500, 3000, 3000, 100)};

TEST(Report, RowsAndGapsAddUpToTheWallTime) {
  const auto program = two_norms();
  const Report report = report_of(program, kSamples);
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[0].op, "rms_norm");
  EXPECT_EQ(report.rows[0].calls, 2);
  EXPECT_DOUBLE_EQ(report.rows[0].us, (7.0 + 18.0 + 6.0) / 3);
  EXPECT_DOUBLE_EQ(report.rows[0].call_min_us, 2.0);
  EXPECT_DOUBLE_EQ(report.rows[0].call_median_us, 4.0);
  EXPECT_DOUBLE_EQ(report.rows[0].cost.bytes_read, 2 * 2 * 64 * 4);
  EXPECT_DOUBLE_EQ(report.between_us, 0.1);
  EXPECT_DOUBLE_EQ(report.around_us, 0.2);
  EXPECT_NEAR(report.ops_us() + report.gaps_us(), report.wall_us, 0.02 * report.wall_us);
  EXPECT_DOUBLE_EQ(report.untimed_us, (9.0 + 9.5 + 9.9) / 3);
}

TEST(Report, OnlyTheMiddleHalfOfTheStepsCounts) {
  const auto program = two_norms();
  std::vector<Sample> samples = kSamples;
  samples.push_back(sample(1'000'000, 0, 0, 100));  // an interruption
  const Report report = report_of(program, samples);
  EXPECT_EQ(report.steps, 4u);
  EXPECT_EQ(report.steps_used, 2u);
  EXPECT_LT(report.wall_us, 30);
}

TEST(Report, GroupsByLayerAndByWeight) {
  const auto program = two_norms();
  const Report layers = report_of(program, kSamples, Group::Layer);
  ASSERT_EQ(layers.rows.size(), 3u);
  EXPECT_EQ(layers.rows[1].layer, 0);
  EXPECT_EQ(layers.rows[2].kernel.file, "src/c.cc");
  const Report weights = report_of(program, kSamples, Group::Weight);
  ASSERT_EQ(weights.rows.size(), 2u);
  EXPECT_EQ(weights.rows[0].weight, "token_embd");
  EXPECT_EQ(weights.rows[1].weight, "attn_norm");
  EXPECT_EQ(weights.rows[1].calls, 2);
}

TEST(Report, SaysWhatBindsAnOp) {
  const auto program = two_norms();
  EXPECT_STREQ(report_of(program, kSamples).rows[0].bound, "latency");
  EXPECT_STREQ(report_of(program, kSamples, Group::Op, 1e7).rows[0].bound, "memory");
  EXPECT_STREQ(report_of(program, kSamples, Group::Op, 0).rows[0].bound, "");
}

TEST(Report, TextHasTotalsGapsAndSources) {
  const auto program = two_norms();
  const std::string text = report_text(report_of(program, kSamples), true);
  for (const char* part : {"(between ops)", "(around them)", "measured apart", "without clocks", "limit",
                           "kernels\n  rms_norm: b (src/b.cc:2)\n    16 x 4\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(report_text(report_of(program, kSamples), false), HasSubstr("  b (src/b.cc:2)"));
}

TEST(Report, ThePageNamesADotOfEachKindOnly) {
  const auto program = two_norms();
  Report report = report_of(program, kSamples);
  report.peaks.bytes_per_second = 1e9;
  const Row row = report.rows[0];
  report.rows.clear();
  for (int layer = 0; layer < 40; ++layer) {
    for (const char* op : {"first", "second"}) {
      report.rows.push_back(row);
      report.rows.back().op = op;
      report.rows.back().layer = layer;
      report.rows.back().cost = {1e3, 0, 2e3};
      report.rows.back().us = 1 + layer;
    }
  }
  const std::vector<Report> reports = {report};
  const std::string html = report_html({"t", "s", reports, {}});
  const std::string roofline =
      html.substr(html.find("Roofline"), html.find("Time by layer") - html.find("Roofline"));
  EXPECT_THAT(roofline, HasSubstr("<title>39.first</title>"));
  for (const char* op : {">first<", ">second<"}) {
    const size_t at = roofline.find(op);
    ASSERT_NE(at, std::string::npos) << op;
    EXPECT_EQ(roofline.find(op, at + 1), std::string::npos) << op;
  }
}

nlohmann::json file_of(const Report& report) {
  return {{"reports", nlohmann::json::array({nlohmann::json::parse(report_json(report).dump())})}};
}

Diff compare_files(const std::string& a_name, const nlohmann::json& a, const std::string& b_name,
                   const nlohmann::json& b) {
  const ProfileFile before[] = {{a_name, a}}, after[] = {{b_name, b}};
  return compare(before, after);
}

TEST(Diff, SeesWhatGotSlowerBeyondNoise) {
  const auto program = two_norms();
  const std::vector<Sample> quick(8, sample(1000, 2000, 3000, 100));
  const std::vector<Sample> slow(8, sample(1000, 2000, 6000, 100));
  const auto a = file_of(report_of(program, quick)), b = file_of(report_of(program, slow));
  const Diff worse = compare_files("a", a, "b", b);
  EXPECT_NEAR(worse.worst_percent, 60, 0.01);  // the norms: 5 us to 8 us
  EXPECT_THAT(worse.text, HasSubstr("slower"));
  EXPECT_EQ(compare_files("b", b, "a", a).worst_percent, 0);
  EXPECT_THAT(compare_files("b", b, "a", a).text, HasSubstr("faster"));
  EXPECT_THAT(compare_files("a", a, "a", a).text, testing::Not(HasSubstr("slower")));
}

TEST(Diff, NoiseIsNoRegression) {
  const auto program = two_norms();
  std::vector<Sample> a, b;
  for (int i = 0; i < 8; ++i) {
    a.push_back(sample(1000, 2000, 3000 + 400 * (i % 4), 100));
    b.push_back(sample(1000, 2000, 3100 + 400 * (i % 4), 100));
  }
  EXPECT_EQ(
      compare_files("a", file_of(report_of(program, a)), "b", file_of(report_of(program, b))).worst_percent,
      0);
}

TEST(Diff, WhatOneSlowCallMovesIsNoise) {
  const auto program = two_norms();
  std::vector<Sample> calm, once, always;
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t embed = 61000 + 100 * i;
    calm.push_back(sample(embed, 2000, 3000, 100));
    // An interrupt, or a page that was not there, in a step that is in the middle by its time all the same.
    once.push_back(i == 4 ? sample(embed - 60000, 2000, 63000, 100) : calm.back());
    always.push_back(sample(embed, 2000, 9000, 100));
  }
  const auto a = file_of(report_of(program, calm)), b = file_of(report_of(program, once));
  EXPECT_GT(report_of(program, once).rows[1].us, 15);
  for (const Diff& diff : {compare_files("a", a, "b", b), compare_files("b", b, "a", a)}) {
    EXPECT_EQ(diff.worst_percent, 0);
    EXPECT_THAT(diff.text, testing::Not(testing::AnyOf(HasSubstr("slower"), HasSubstr("faster"))));
  }
  EXPECT_GT(compare_files("a", a, "b", file_of(report_of(program, always))).worst_percent, 100);
}

TEST(Diff, WhatRunsOfOneProgramLieApartIsNoise) {
  const auto program = two_norms();
  const auto run = [&](int64_t norm) {
    return ProfileFile{"run",
                       file_of(report_of(program, std::vector<Sample>(8, sample(1000, 2000, norm, 100))))};
  };
  // 4% of the norms' time: less than two runs differ by anyway.
  EXPECT_EQ(compare_files("a", run(3000).content, "b", run(3200).content).worst_percent, 0);
  // 20% is more, unless runs of one side are as far apart themselves.
  EXPECT_GT(compare_files("a", run(3000).content, "b", run(4000).content).worst_percent, 10);
  const std::vector<ProfileFile> calm = {run(3000), run(3010), run(2990)},
                                 wild = {run(3000), run(4200), run(2900)},
                                 slow = {run(4000), run(4010), run(4020)};
  EXPECT_GT(compare(calm, slow).worst_percent, 10);
  EXPECT_EQ(compare(wild, slow).worst_percent, 0);
  EXPECT_THAT(compare(wild, slow).text, testing::Not(HasSubstr("slower")));
  EXPECT_EQ(compare(slow, wild).worst_percent, 0);
}

TEST(Diff, TheMachinesDriftIsNoise) {
  const auto program = two_norms();
  auto a = file_of(report_of(program, std::vector<Sample>(8, sample(1000, 2000, 3000, 100))));
  auto b = file_of(report_of(program, std::vector<Sample>(8, sample(1000, 2000, 4000, 100))));
  EXPECT_GT(compare_files("a", a, "b", b).worst_percent, 10);
  a["bandwidth_before"] = a["bandwidth_after"] = b["bandwidth_before"] = 13e9;
  EXPECT_GT(compare_files("a", a, "b", b).worst_percent, 10);
  b["bandwidth_after"] = 9e9;  // the machine became slower by more than the op
  EXPECT_EQ(compare_files("a", a, "b", b).worst_percent, 0);
  EXPECT_THAT(compare_files("a", a, "b", b).text, HasSubstr("44.4 % for the machine"));
}

TEST(Report, SharesBeyondTheLimitAreNotPrinted) {
  EXPECT_EQ(share_of_limit(30, 40), "75.0 %");
  EXPECT_EQ(share_of_limit(41, 40), "102.5 %");
  EXPECT_EQ(share_of_limit(160, 40), "> 100 %");
  EXPECT_EQ(share_of_limit(0, 40), "-");
  const auto program = two_norms();
  const Report cached =
      report_of(program, kSamples, Group::Op, 1e6);  // a memory that is slower than the steps
  EXPECT_THAT(report_text(cached, false),
              HasSubstr("efficiency > 100 %\n> 100 %: weights came out of a cache"));
  EXPECT_THAT(report_text(report_of(program, kSamples), false), testing::Not(HasSubstr("> 100 %")));
}

TEST(Diff, WhatAddsNothingToTheStepIsNoRegression) {
  const auto program = two_norms();
  const std::vector<Sample> before(8, sample(100, 2'000'000, 3'000'000, 100));
  const std::vector<Sample> tiny(8, sample(4000, 2'000'000, 3'000'000, 100));
  const std::vector<Sample> some(8, sample(8000, 2'000'000, 3'000'000, 100));
  const auto a = file_of(report_of(program, before));
  const Diff ignored = compare_files("a", a, "b", file_of(report_of(program, tiny)));
  EXPECT_EQ(ignored.worst_percent, 0);
  EXPECT_THAT(ignored.text, HasSubstr("slower"));  // it is shown all the same
  EXPECT_NEAR(compare_files("a", a, "b", file_of(report_of(program, some))).worst_percent, 7900, 1);
}

TEST(Diff, TellsOfRowsThatOnlyOneSideHas) {
  const auto program = two_norms();
  const auto both = file_of(report_of(program, kSamples));
  auto one = both;
  one["reports"][0]["rows"].erase(0);
  EXPECT_THAT(compare_files("a", both, "b", one).text, testing::ContainsRegex("rms_norm +10\\.3 +-  gone\n"));
  EXPECT_THAT(compare_files("a", one, "b", both).text, testing::ContainsRegex("rms_norm +- +10\\.3  new\n"));
}

TEST(Diff, RowsOfTwoKindsAreNotCompared) {
  const auto program = two_norms();
  const auto whole = file_of(report_of(program, kSamples));
  auto layers = whole, older = whole;
  layers["reports"][0]["rows_by"] = "layer";
  older["reports"][0].erase("rows_by");
  EXPECT_THROW(compare_files("a", whole, "b", layers), Error);
  EXPECT_THAT(compare_files("a", layers, "b", layers).text, HasSubstr("same"));
  EXPECT_THAT(compare_files("a", older, "b", whole).text, HasSubstr("same"));
}

TEST(Diff, RecordsOfOneNameAreComparedInTheirOrder) {
  const auto program = two_norms();
  auto records = file_of(report_of(program, kSamples));
  auto& rows = records["reports"][0]["rows"];
  rows = {rows[0], rows[0]};
  rows[1]["us"] = 2 * rows[0]["us"].get<double>();
  const std::string text = compare_files("a", records, "b", records).text;
  EXPECT_THAT(text, testing::Not(HasSubstr("slower")));
  EXPECT_THAT(text, HasSubstr(rows[0]["op"].get<std::string>() + " (2)"));
}

TEST(Diff, RefusesWhatIsNoProfile) {
  const auto program = two_norms();
  const auto good = file_of(report_of(program, kSamples));
  EXPECT_THROW(compare_files("a", good, "b", nlohmann::json::array()), Error);
  EXPECT_THROW(compare_files("a", nlohmann::json::parse(R"({"reports": [{"test": 1}]})"), "b", good), Error);
  auto other = good;
  other["reports"][0]["test"] = "pp5";
  EXPECT_THROW(compare_files("a", good, "b", other), Error);
}

TEST(Trace, IsOneTrackAWorkerAndOneSliceAnOp) {
  const auto program = two_norms();
  program::StepTimes times;
  times.begin_ns = 1000;
  times.end_ns = 9000;
  times.workers = 2;
  times.parts = {{1000, 2000}, {2000, 3000}, {4000, 5000}, {1000, 2000}, {2500, 3000}, {4000, 8000}};
  const auto json = nlohmann::json::parse(trace_json(program, {}, std::vector{times}));
  int slices = 0, names = 0;
  for (const auto& event : json["traceEvents"]) {
    slices += event["ph"] == "X" ? 1 : 0;
    names += event["ph"] == "M" ? 1 : 0;
    if (event["ph"] == "X" && event["tid"] == 2 && event["name"] == "1.rms_norm") {
      EXPECT_DOUBLE_EQ(event["ts"].get<double>(), 3.0);
      EXPECT_DOUBLE_EQ(event["dur"].get<double>(), 4.0);
    }
  }
  EXPECT_EQ(slices, 1 + 6);
  EXPECT_EQ(names, 3);
}

// Perfetto multiplies by 1000 and cuts off; of slices that then overlap by a nanosecond it drops one.
TEST(Trace, SlicesThatTouchStillTouchWhenCutToNanoseconds) {
  const auto program = two_norms();
  std::vector<program::StepTimes> steps;
  int64_t now = 0;
  for (int64_t i = 0; i < 20'000; ++i) {
    program::StepTimes times;
    times.begin_ns = now, times.workers = 1;
    for (int64_t ns : {i % 997 + 1, i % 61 + 1, i % 4001 + 1})
      times.parts.push_back({now, now + ns}), now += ns;
    times.end_ns = now;
    steps.push_back(times);
  }
  const auto json = nlohmann::json::parse(trace_json(program, {}, steps));
  const auto ns = [](const nlohmann::json& us) { return static_cast<int64_t>(us.get<double>() * 1000.0); };
  int64_t ended = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != 1) continue;
    ASSERT_EQ(ns(event["ts"]), ended) << event;
    ended += ns(event["dur"]);
  }
  EXPECT_EQ(ended, now);
}

TEST(Html, IsSelfContainedAndEscapesNames) {
  const auto program = two_norms();
  const std::vector<Report> reports = {report_of(program, kSamples)};
  const std::vector<DepthSpeed> speeds = {{1, 100, 200}, {1024, 50, 180}};
  const std::string html = report_html({"<script>", "a & b", reports, speeds});
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(html, HasSubstr("a &amp; b"));
  EXPECT_THAT(html, testing::Not(HasSubstr("<script")));
  EXPECT_THAT(html, testing::Not(HasSubstr("http")));
  EXPECT_THAT(html, testing::Not(HasSubstr("nan")));
  size_t plots = 0;
  for (size_t at = html.find("<svg "); at != std::string::npos; at = html.find("<svg ", at + 1)) ++plots;
  EXPECT_EQ(plots, 4u);
  EXPECT_THAT(html, HasSubstr("<table>"));
  EXPECT_THAT(html, HasSubstr("<td>rms_norm</td>"));
}

TEST(Html, SaysWhenWhereAndHow) {
  const auto program = two_norms();
  const std::vector<Report> reports = {report_of(program, kSamples)};
  const std::vector<DepthSpeed> speeds = {{1, 100, 200}};
  const std::string html = report_html({"t", "s", reports, speeds, {{"machine", "a <fast> one"}}, 13e9});
  EXPECT_THAT(html, HasSubstr("<dt>machine</dt><dd>a &lt;fast&gt; one</dd>"));
  EXPECT_THAT(html, HasSubstr("limit at 13.0 GB/s"));
}

}  // namespace
}  // namespace sluice::profile
