// Downloads from a hub that answers well, badly and with malice.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "base/error.h"
#include "hub/mirror.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

TEST_F(Mirror, TrustsTheCertificatesThatOneNames) {
  const auto forget = [] {
    for (const char* name : {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) ::unsetenv(name);
  };
  forget();
  for (const char* name :
       {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {  // the last one counts most
    ::setenv(name, fmt::format("/of {}", name).c_str(), 1);
    EXPECT_EQ(Settings::from_environment().certificates, fmt::format("/of {}", name));
  }
  forget();
  const std::string found = Settings::from_environment().certificates;
  EXPECT_TRUE(found.empty() || fs::is_regular_file(found)) << found;
}

TEST_F(Mirror, FetchesIntoTheLayoutThatClientsShare) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 50'000);
  const fs::path file = pull("user/model");
  EXPECT_EQ(read_file(file), content);
  const fs::path folder = settings.cache / "models--user--model";
  const std::string commit = read_file(folder / "refs/main");
  EXPECT_EQ(file, folder / "snapshots" / commit / "M-Q4_K_M.gguf");
  // The link is relative, and its target's name the hash that sha256sum knows.
  const fs::path target = fs::read_symlink(file);
  EXPECT_EQ(target.parent_path(), "../../blobs");
  ASSERT_EQ(std::system(fmt::format("echo '{}  {}' | sha256sum -c --status", target.filename().string(),
                                    file.string())
                            .c_str()),
            0);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().done_bytes, 50'000);
  EXPECT_EQ(steps.back().total_bytes, 50'000);
  EXPECT_EQ(steps.back().name, "user/model:Q4_K_M");
}

TEST_F(Mirror, FetchesNothingTwice) {
  add("user/model/M-Q4_K_M.gguf", 50'000);
  const fs::path file = pull("user/model:Q4_K_M");
  requests();
  EXPECT_EQ(pull("user/model"), file);
  EXPECT_THAT(requests(), ElementsAre(HasSubstr("/api/models/user/model/revision/main")));
  EXPECT_EQ(find_or_pull("user/model"), file);
  EXPECT_EQ(find_or_pull("user/model:q4_k_m"), file);
  EXPECT_EQ(find_or_pull("user/model:M-Q4_K_M.gguf"), file);
  EXPECT_THAT(requests(), SizeIs(0));
  // A new revision of which nothing changed is a link more.
  const std::string commit(40, 'b');
  faults(R"({"commit": ")" + commit + R"("})");
  EXPECT_EQ(pull("user/model").parent_path().filename(), commit);
  EXPECT_THAT(requests(), SizeIs(1));
  EXPECT_EQ(read_file(settings.cache / "models--user--model/refs/main"), commit);
}

TEST_F(Mirror, FetchesAllParts) {
  const std::string one = add("user/model/Q8_0/M-Q8_0-00001-of-00002.gguf", 30'000);
  const std::string two = add("user/model/Q8_0/M-Q8_0-00002-of-00002.gguf", 2'000);
  const fs::path file = pull("user/model:Q8_0");
  EXPECT_EQ(read_file(file), one);
  EXPECT_EQ(read_file(file.parent_path() / "M-Q8_0-00002-of-00002.gguf"), two);
  EXPECT_EQ(fs::read_symlink(file).parent_path(), "../../../blobs");
  EXPECT_EQ(steps.back().done_bytes, 32'000);
}

TEST_F(Mirror, KnowsSmallFilesByTheirTags) {
  const std::string content = add("user/model/tiny.gguf", 500);
  EXPECT_EQ(pull_text("user/model"), content);
}

TEST_F(Mirror, GoesOnAfterCuts) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 50'000);
  faults(R"({"cut": 9000})");
  EXPECT_EQ(pull_text("user/model"), content);
  std::vector<std::string> asked;
  for (const std::string& line : requests())
    if (line.starts_with("contents")) asked.push_back(line);
  ASSERT_THAT(asked, SizeIs(6));
  EXPECT_THAT(asked[1], HasSubstr(" bytes=9000- "));
  EXPECT_THAT(asked[5], HasSubstr(" bytes=45000- "));
}

TEST_F(Mirror, GoesOnFromAnEarlierDownload) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 50'000);
  const std::string hash = fs::read_symlink(pull("user/model")).filename().string();
  const fs::path blob = settings.cache / "models--user--model/blobs" / hash;
  const auto begin_anew = [&](const std::string& left) {
    fs::remove(blob);
    std::ofstream(blob.string() + ".incomplete", std::ios::binary) << left;
    requests();
  };
  begin_anew(content.substr(0, 20'000));
  EXPECT_EQ(pull_text("user/model"), content);
  EXPECT_THAT(requests(), Contains(HasSubstr("bytes=20000-")));
  begin_anew(content);  // all of it was there
  EXPECT_EQ(pull_text("user/model"), content);
  EXPECT_THAT(requests(), Not(Contains(StartsWith("contents"))));
  begin_anew(content + "and more");
  EXPECT_EQ(pull_text("user/model"), content);
  begin_anew("not its beginning");
  EXPECT_EQ(pull_text("user/model"), content);
  EXPECT_THAT(told, Contains(HasSubstr("an earlier download left is damaged")));
  faults(R"({"no_ranges": true})");
  begin_anew(content.substr(0, 20'000));
  EXPECT_EQ(pull_text("user/model"), content);
  EXPECT_FALSE(fs::exists(blob.string() + ".incomplete"));
}

TEST_F(Mirror, ComesAgainWhenTheHubIsBusy) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 5'000);
  faults(R"({"busy": 3})");
  EXPECT_EQ(pull_text("user/model"), content);
  EXPECT_THAT(told, SizeIs(3));
  EXPECT_THAT(told, Each(HasSubstr("status 429")));
  told.clear();
  faults(R"({"api_status": [429, "RateLimit"]})");
  EXPECT_THAT(problem("user/model"), HasSubstr("answers no more requests for now (status 429)"));
  EXPECT_THAT(told, SizeIs(3));  // nobody waits for the list without knowing it
  EXPECT_THAT(told, Each(HasSubstr("status 429; trying again in")));
}

TEST_F(Mirror, SaysWhatTheHubRefuses) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  add("user/text/README.md", 5'000);
  const std::string page = settings.endpoint + "/user/model";
  EXPECT_EQ(problem("user/none"), "user/none: no such repository at " + settings.endpoint +
                                      ", or a private one that wants a token (HF_TOKEN)");
  EXPECT_EQ(problem("user/text"), "user/text: holds no GGUF model");
  EXPECT_EQ(problem("user/model:Q8_0"), "user/model: no Q8_0; there are Q4_K_M (5.00 kB)");
  faults(R"({"gated": true, "token": "right"})");
  EXPECT_EQ(problem("user/model"),
            "user/model: is gated; accept its conditions at " + page + " and give a token (HF_TOKEN)");
  settings.token = "wrong";
  EXPECT_EQ(
      problem("user/model"),
      "user/model: is gated, and this token has no access; its conditions are to be accepted at " + page);
  settings.token = "right";
  EXPECT_EQ(problem("user/model"), "");
  EXPECT_EQ(problem("user/none"),
            "user/none: no such repository at " + settings.endpoint + ", or this token may not see it");
  settings.token = "other";
  faults(R"({"api_status": [401, "Unauthorized"]})");
  EXPECT_EQ(problem("user/model"), "user/model: the hub does not accept this token (HF_TOKEN)");
  faults(R"({"api_status": [404, "RevisionNotFound"]})");
  EXPECT_EQ(problem("user/model"), "user/model: has no revision main");
  faults(R"({"lost": true})");
  add("user/model/M-Q8_0.gguf", 5'000);
  EXPECT_EQ(problem("user/model:Q8_0"), "user/model: has no file M-Q8_0.gguf");
}

TEST_F(Mirror, SendsTheTokenToTheHubAlone) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  settings.token = "secret";
  pull("user/model");
  int hub = 0, contents = 0;
  for (const std::string& line : requests()) {
    const bool told_token = line.find("Bearer_secret") != std::string::npos;
    EXPECT_EQ(told_token, line.starts_with("hub")) << line;
    (line.starts_with("hub") ? hub : contents) += 1;
  }
  EXPECT_EQ(hub, 2);
  EXPECT_EQ(contents, 1);
  // Another name of the same machine is another host.
  add("user/model/M-Q8_0.gguf", 5'000);
  faults(fmt::format(R"({{"location": "http://localhost:{}/x"}})", port_));
  problem("user/model:Q8_0");
  EXPECT_THAT(requests().back(), testing::AllOf(HasSubstr("GET /x"), Not(HasSubstr("secret"))));
}

TEST_F(Mirror, RefusesDamagedContents) {
  add("user/model/M-Q4_K_M.gguf", 50'000);
  const fs::path blobs = settings.cache / "models--user--model/blobs";
  faults(R"({"wrong": true})");
  EXPECT_THAT(problem("user/model"), HasSubstr("M-Q4_K_M.gguf: what the hub sent does not have the sha256"));
  faults(R"({"longer": 10})");
  EXPECT_THAT(problem("user/model"), HasSubstr("more than the 50000 bytes that its list says"));
  fs::remove_all(blobs);
  faults(R"({"cut": 10000, "range": "bytes 0-49999/50000"})");
  EXPECT_THAT(problem("user/model"),
              HasSubstr("the hub sends other bytes (bytes 0-49999/50000) than it was asked for"));
  fs::remove_all(blobs);
  faults(R"({"cut": 10000, "range": "bytes 10000-49999/60000"})");
  EXPECT_THAT(problem("user/model"), HasSubstr("the hub sends other bytes"));
  for (const auto& entry : fs::directory_iterator(blobs)) EXPECT_EQ(entry.path().extension(), ".incomplete");
  faults("{}");
  EXPECT_EQ(problem("user/model"), "");
}

TEST_F(Mirror, RefusesRedirectsThatLeadAstray) {
  add("user/model/M-Q4_K_M.gguf", 50'000);
  faults(R"({"endless": true})");
  EXPECT_THAT(problem("user/model"), HasSubstr("more than 10 redirects"));
  faults(R"({"location": "file:///etc/passwd"})");
  EXPECT_THAT(problem("user/model"), HasSubstr("a redirect to file:///etc/passwd is no HTTP"));
  faults(R"({"location": "gopher://127.0.0.1/x"})");
  EXPECT_THAT(problem("user/model"), HasSubstr("is no HTTP"));
}

std::string list(const std::string& name, const std::string& more) {
  return R"({"sha": ")" + std::string(40, 'a') + R"(", "siblings": [{"rfilename": ")" + name + "\"" + more +
         "}]}";
}

TEST_F(Mirror, RefusesListsThatMakeNoSense) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  const std::string lfs =
      R"(, "size": 5000, "lfs": {"sha256": ")" + std::string(64, 'c') + R"(", "size": 5000})";
  const auto problem_with = [&](const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    faults("{\"list\": \"" + escaped + "\"}");
    return problem("user/model");
  };
  for (const char* name :
       {"../M-Q4_K_M.gguf", "/etc/M-Q4_K_M.gguf", "a/../../M.gguf", "a//b.gguf", "", "x\\\\y.gguf"})
    EXPECT_THAT(problem_with(list(name, lfs)), HasSubstr("which is no path in a repository")) << name;
  EXPECT_THAT(problem_with(list("M.gguf", R"(, "lfs": {"sha256": "../../x", "size": 5})")),
              HasSubstr("no sha256 of M.gguf"));
  EXPECT_THAT(problem_with(list("M.gguf", R"(, "lfs": {"sha256": ")" + std::string(64, 'c') + "\"}")),
              HasSubstr("no size of M.gguf"));
  EXPECT_THAT(
      problem_with(list("M.gguf", R"(, "lfs": {"sha256": ")" + std::string(64, 'c') + R"(", "size": -5})")),
      HasSubstr("no size of M.gguf"));
  // Parts whose sizes add up to more than a number holds, or that no file has.
  for (const char* size : {"9223372036854775807", "18446744073709551615", "70368744177665"}) {
    const std::string part =
        R"(, "lfs": {"sha256": ")" + std::string(64, 'c') + R"(", "size": )" + size + "}";
    EXPECT_THAT(problem_with(list("M-00001-of-00002.gguf",
                                  part + R"(}, {"rfilename": "M-00002-of-00002.gguf")" + part)),
                HasSubstr("no size of M-00001-of-00002.gguf"))
        << size;
  }
  EXPECT_THAT(problem_with(R"({"sha": "../../../etc", "siblings": []})"), HasSubstr("no commit"));
  EXPECT_THAT(problem_with(R"({"sha": ")" + std::string(40, 'a') + R"(", "siblings": 5})"),
              HasSubstr("no files"));
  EXPECT_THAT(problem_with("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(problem_with("{"), HasSubstr("no JSON object"));
  EXPECT_THAT(problem_with(std::string(5000, '[')), HasSubstr("nested too deeply"));
  faults(R"({"huge": 20000000})");
  EXPECT_THAT(problem("user/model"), HasSubstr("longer than the 16777216 bytes"));
  EXPECT_FALSE(fs::exists(settings.cache / "models--user--model/snapshots"));
}

TEST_F(Mirror, WantsRoomOnTheDisk) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  const std::string text = list(
      "M-Q4_K_M.gguf", R"(, "lfs": {"sha256": ")" + std::string(64, 'c') + R"(", "size": 60000000000000})");
  std::string escaped;
  for (const char c : text) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
  faults("{\"list\": \"" + escaped + "\"}");
  requests();
  EXPECT_THAT(problem("user/model"), testing::ContainsRegex("60.00 TB are needed and .* are free"));
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(Mirror, WithoutANetworkSaysSoAndUsesWhatThereIs) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 5'000);
  const fs::path file = pull("user/model");
  settings.endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(find_or_pull("user/model"), file);
  EXPECT_THAT(problem("user/model"),
              testing::AllOf(StartsWith("user/model: http://127.0.0.1:1 cannot be reached ("),
                             HasSubstr("without a network")));
  settings.offline = true;
  EXPECT_EQ(find_or_pull("user/model"), file);
  EXPECT_EQ(problem("user/other"), "user/other: is not in " + settings.cache.string() +
                                       ", and HF_HUB_OFFLINE forbids to ask for it");
}

TEST_F(Mirror, TwoAtOnceFetchItOnce) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 200'000);
  faults(R"({"slow": 400000})");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(3);
  for (std::string& text : texts)
    threads.emplace_back(
        [&] { text = read_file(hub::pull(settings, ModelName::parse("user/model"), taste, {}).string()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, Each(content));
  int fetched = 0;
  for (const std::string& line : requests()) fetched += line.starts_with("contents") ? 1 : 0;
  EXPECT_EQ(fetched, 1);
}

}  // namespace
}  // namespace sluice::hub
