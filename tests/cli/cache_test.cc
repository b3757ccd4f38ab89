// Prompts that outlive their server: serve --cache-disk over kills and damage, and sluice cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "cli/page_cache.h"
#include "support/command.h"
#include "support/connection.h"
#include "support/served.h"
#include "support/small_model.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using test::Connection;
using test::Served;
using testing::HasSubstr;

struct Said {
  std::string text;
  int64_t cached = -1;
};

class CacheTest : public testing::Test, public test::CommandFolder {
 protected:
  CacheTest() : CommandFolder("cache") {}

  static std::string reply(const Served& served, const std::string& method, const std::string& path,
                           const std::string& body = {}) {
    Connection connection(served.port());
    connection.send(method, path, body);
    const std::string all = connection.read();
    return all.substr(all.find("\r\n\r\n") + 4);
  }
  static Said ask(const Served& served) {
    std::string prompt;
    for (int i = 0; i < 60; ++i) prompt += "Once upon a time there was a king who had three daughters. ";
    const json body = {{"prompt", prompt}, {"max_tokens", 20}, {"temperature", 0}, {"ignore_eos", true}};
    const json said = json::parse(reply(served, "POST", "/v1/completions", body.dump()));
    return {said["choices"][0]["text"], said["usage"]["prompt_tokens_details"]["cached_tokens"]};
  }
  /// The server's own count.
  static int64_t metric(const Served& served, const std::string& name) {
    const std::string text = reply(served, "GET", "/metrics");
    const size_t at = text.find("\nsluice_" + name + " ");
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 9));
  }
  static void wait_for_pages(const Served& served, int64_t pages) {
    for (int i = 0; i < 3000 && metric(served, "cache_disk_pages") < pages; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::vector<std::filesystem::path> page_files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path("prompts")))
      if (entry.is_regular_file() && entry.path().filename().string().size() == 32)
        files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
  }
  std::vector<std::string> flags() const {
    return {"--port", "0", "-c", "1024", "-t", "1", "--cache-disk", path("prompts") + ":1GiB"};
  }
};

TEST_F(CacheTest, AKilledServersPromptsAreFoundByTheNext) {
  Said first;
  {
    Served served(*this, flags());
    ASSERT_GT(served.port(), 0) << served.log();
    EXPECT_THAT(served.log(), HasSubstr("  prompts  "));
    first = ask(served);
    EXPECT_EQ(first.cached, 0);
    wait_for_pages(served, 10);
    served.signal(SIGKILL);
    served.wait();
  }
  EXPECT_GE(page_files().size(), 10u);
  struct stat found {};
  ASSERT_EQ(::stat(page_files().front().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  {
    Served served(*this, flags());
    const Said again = ask(served);
    EXPECT_EQ(again.text, first.text);
    EXPECT_GE(again.cached, 640);
    EXPECT_EQ(metric(served, "cache_pages_brought_total") * 64, again.cached);
    const json there = json::parse(reply(served, "GET", "/cache"));
    EXPECT_GE(there["disk"]["pages"], 10);
    EXPECT_EQ(there["disk"]["limit_bytes"], int64_t{1} << 30);
    EXPECT_GE(there["device"]["pages_cached"], 10);
    EXPECT_EQ(json::parse(reply(served, "POST", "/cache/clear"))["status"], "ok");
    EXPECT_EQ(json::parse(reply(served, "GET", "/cache"))["disk"]["pages"], 0);
    EXPECT_TRUE(page_files().empty());
    EXPECT_EQ(ask(served).cached, 0);
    wait_for_pages(served, 10);
    served.signal(SIGTERM);
    EXPECT_EQ(served.wait(), 0);
  }
  // Whatever becomes of the files.
  std::mt19937 random(1);
  for (const auto& file : page_files()) {
    if (random() % 3 == 0) std::filesystem::resize_file(file, random() % 1000);
    if (random() % 3 == 0) std::ofstream(file, std::ios::app) << "more";
  }
  Served served(*this, flags());
  EXPECT_EQ(ask(served).text, first.text);
}

TEST_F(CacheTest, IsListedAndClearedByCommands) {
  {
    Served served(*this, flags());
    ask(served);
    served.signal(SIGTERM);
    served.wait();
  }
  const test::CommandResult table = run("cache list " + path("prompts"));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("last used"));
  const json list = json::parse(run("cache list --json " + path("prompts")).out);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_GE(list[0]["pages"], 10);
  const std::string id = list[0]["id"];
  EXPECT_THAT(table.out, HasSubstr(id.substr(0, 12)));
  const test::CommandResult unknown = run("cache clear --id ffff0000 " + path("prompts"));
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("0 models have an id that begins with ffff0000"));
  EXPECT_EQ(run("cache clear --id " + id.substr(0, 12) + " " + path("prompts")).code, 0);
  EXPECT_TRUE(page_files().empty());
  EXPECT_THAT(run("cache list " + path("prompts")).out, HasSubstr("nothing is cached"));
  EXPECT_THAT(run("cache list " + path("nowhere")).err, HasSubstr("is no folder"));
}

TEST(PageCacheOptions, AFolderMayHaveASize) {
  EXPECT_EQ(page_folder_of("/var/cache/x").path, "/var/cache/x");
  EXPECT_EQ(page_folder_of("/var/cache/x").limit_bytes, int64_t{32} << 30);
  EXPECT_EQ(page_folder_of("/var/cache/x:10GiB").path, "/var/cache/x");
  EXPECT_EQ(page_folder_of("/var/cache/x:10GiB").limit_bytes, int64_t{10} << 30);
  EXPECT_EQ(page_folder_of("/var/ca:1/x").path, "/var/ca:1/x");
  EXPECT_THROW(page_folder_of("/var/cache/x:10 potatoes"), Error);
  EXPECT_THROW(page_folder_of(":10GiB"), UsageError);
}

TEST(ModelIdentity, IsAnotherOneForAnotherModel) {
  const std::string folder = testing::TempDir() + "sluice-identity-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  const auto identity = [&](const std::string& name) {
    return model_identity(gguf::File::open(folder + name));
  };
  test::write_small_model("glm-4.7-flash", "q4_k_m", folder + "/a");
  test::write_small_model("glm-4.7-flash", "q4_0", folder + "/b");
  const std::string before = identity("/a");
  EXPECT_EQ(identity("/a"), before);
  EXPECT_NE(identity("/b"), before);
  std::filesystem::last_write_time(folder + "/a", std::filesystem::file_time_type::clock::now());
  EXPECT_NE(identity("/a"), before) << "somebody may have changed it";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::cli
