// pull, list, rm and -hf as a user meets them; a cache that is shared with the package huggingface_hub.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "hub/mirror.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class HubCommand : public Mirror {
 protected:
  void add_tale() {
    put("files/user/tale/tale-Q4_K_M.gguf", read_file(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf"));
  }
};

TEST_F(HubCommand, PullsListsRunsAndRemoves) {
  add_tale();
  const CommandResult empty = run("list");
  EXPECT_EQ(empty.code, 0);
  EXPECT_THAT(empty.err, HasSubstr("no models in " + settings.cache.string()));
  const CommandResult pulled = run("pull user/tale");
  ASSERT_EQ(pulled.code, 0) << pulled.err;
  EXPECT_THAT(pulled.err, HasSubstr("sluice: user/tale:Q4_K_M: fetching  ["));
  const std::string file = pulled.out.substr(0, pulled.out.size() - 1);
  EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_THAT(run("list").out, testing::MatchesRegex("user/tale:Q4_K_M +[0-9.]+ MB\n"));
  const auto json = nlohmann::json::parse(run("list --json").out);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["name"], "user/tale:Q4_K_M");
  EXPECT_EQ(json[0]["path"], file);
  requests();
  const std::string text = run("run -n 8 --temp 0 -p 'The wolf'").out;
  for (const char* named :
       {"-hf user/tale", "-hf user/tale:Q4_K_M", "--hf-repo user/tale -hff tale-Q4_K_M.gguf",
        "-hff tale-Q4_K_M.gguf -hf user/tale", "-m hf:user/tale", "-hf user/tale --offline"}) {
    const CommandResult result = run(fmt::format("run {} -n 8 --temp 0 -p 'The wolf'", named));
    EXPECT_EQ(result.out, text) << named << ": " << result.err;
  }
  EXPECT_THAT(run("inspect -hf user/tale").out, HasSubstr(file));
  EXPECT_EQ(run("bench -hf user/tale -p 4 -n 2 -r 1").code, 0);
  EXPECT_THAT(requests(), SizeIs(0));  // what is there is used without a question
  EXPECT_THAT(run("rm user/tale:Q8_0").err, HasSubstr("user/tale: no Q8_0; there are Q4_K_M"));
  EXPECT_THAT(run("rm user/other:Q8_0").err, HasSubstr("user/other:Q8_0: is not in"));
  const CommandResult removed = run("rm user/tale:Q4_K_M");
  EXPECT_EQ(removed.code, 0) << removed.err;
  EXPECT_THAT(removed.err, HasSubstr("removed"));
  EXPECT_FALSE(fs::exists(settings.cache / "models--user--tale"));
  EXPECT_EQ(run("rm user/tale").code, 1);
}

TEST_F(HubCommand, FetchesWhatRunNames) {
  add_tale();
  const CommandResult result = run("run -hf user/tale -n 8 --temp 0 -p 'The wolf'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, run("run -n 8 --temp 0 -p 'The wolf'").out);
}

TEST_F(HubCommand, NamesWhatIsWrong) {
  add_tale();
  const struct {
    const char* arguments;
    int code;
    const char* message;
  } cases[] = {
      {"run -hf tale -n 1", 2, "expected USER/REPO of the model hub"},
      {"run -hf", 2, "-hf: a value is missing"},
      {"run -hf ../../etc -n 1", 2, "expected USER/REPO"},
      {"run -hf user/tale -m x.gguf -n 1", 2, "--hf"},
      {"run -hff x.gguf -n 1", 2, "--hf-file x.gguf: --hf USER/REPO is missing"},
      {"serve -hff x.gguf", 2, "--hf-file x.gguf: --hf USER/REPO is missing"},
      {"bench -hf a/b -hf c/d -hff x.gguf", 2, "--hf-file: which repository's?"},
      {"run -hf user/none -n 1", 1, "user/none: no such repository"},
      {"pull user/tale:Q8_0", 1, "user/tale: no Q8_0; there are Q4_K_M"},
      {"pull", 2, "MODEL"},
      {"pull user/tale --offline", 2, "--offline"},
      {"inspect", 2, "FILE is required"},
  };
  for (const auto& c : cases) {
    const CommandResult result = run(c.arguments);
    EXPECT_EQ(result.code, c.code) << c.arguments;
    EXPECT_THAT(result.err, HasSubstr(c.message)) << c.arguments;
    EXPECT_EQ(result.out, "") << c.arguments;
  }
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_THAT(run("run -hf user/tale -n 1").err, HasSubstr("HF_HUB_OFFLINE forbids"));
  ::unsetenv("HF_HUB_OFFLINE");
  ::setenv("HF_ENDPOINT", "ftp://127.0.0.1", 1);
  EXPECT_THAT(run("pull user/tale").err, HasSubstr("HF_ENDPOINT ftp://127.0.0.1: expected https://HOST"));
}

TEST_F(HubCommand, TakesTheTokenOfTheEnvironmentOrItsFile) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  faults(R"({"gated": true, "token": "right"})");
  EXPECT_EQ(run("pull user/model").code, 1);
  put("token", "right\n");
  ::setenv("HF_TOKEN_PATH", path("token").c_str(), 1);
  EXPECT_EQ(run("pull user/model").code, 0);
  ::setenv("HF_TOKEN", "wrong", 1);
  EXPECT_THAT(run("pull user/model").err, HasSubstr("this token has no access"));
  ::setenv("HF_TOKEN", "right\nX-Other: 1", 1);
  EXPECT_THAT(run("pull user/model").err, HasSubstr("HF_TOKEN: expected"));
  ::unsetenv("HF_TOKEN");
}

TEST_F(HubCommand, GoesThroughAProxy) {
  add("user/model/M-Q4_K_M.gguf", 5'000);
  ::setenv("HF_ENDPOINT", "http://hub.invalid", 1);
  ::setenv("http_proxy", settings.endpoint.c_str(), 1);
  // The mirror is no proxy, but sees what one is asked.
  run("pull user/model");
  EXPECT_THAT(requests(), Contains(HasSubstr("GET http://hub.invalid/api/models/user/model")));
  ::unsetenv("http_proxy");
}

TEST_F(HubCommand, GoesOnAfterItWasKilled) {
  const std::string content = add("user/model/M-Q4_K_M.gguf", 2'000'000);
  faults(R"({"slow": 1000000})");
  const fs::path blobs = settings.cache / "models--user--model/blobs";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    ::execl(SLUICE_BINARY, SLUICE_BINARY, "pull", "user/model", nullptr);
    ::_exit(99);
  }
  const auto there = [&] {
    int64_t bytes = 0;
    std::error_code error;
    for (fs::directory_iterator entry(blobs, error), end; !error && entry != end; entry.increment(error))
      bytes += static_cast<int64_t>(entry->file_size(error));
    return bytes;
  };
  for (int i = 0; i < 2000 && there() < 300'000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const int64_t left = there();
  ASSERT_GE(left, 300'000);
  ASSERT_LT(left, 2'000'000);
  EXPECT_EQ(run("list").out, "");
  faults("{}");
  requests();
  const CommandResult result = run("pull user/model");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(result.out.substr(0, result.out.size() - 1)), content);
  EXPECT_THAT(requests(), Contains(HasSubstr(fmt::format("bytes={}-", left))));
}

/// The package huggingface_hub in a virtual environment that tests keep; why not, otherwise.
std::string with_package(std::string& python) {
  const fs::path folder = fs::path(SLUICE_GOLDEN_FILES) / "../hub-venv";
  python = (folder / "bin/python").lexically_normal().string();
  const std::string quiet = " >/dev/null 2>&1";
  if (std::system((python + " -c 'import huggingface_hub'" + quiet).c_str()) == 0) return "";
  if (std::system(
          (std::string(SLUICE_PYTHON " -m venv ") + folder.lexically_normal().string() + quiet).c_str()) != 0)
    return "python3 -m venv does not work";
  if (std::system(("env -u HF_ENDPOINT timeout 120 " + python + " -m pip install -q huggingface_hub" + quiet)
                      .c_str()) != 0)
    return "PyPI's huggingface_hub cannot be had";
  return "";
}

TEST_F(HubCommand, SharesItsCacheWithThePackageHuggingfaceHub) {
  std::string python;
  if (const std::string why = with_package(python); !why.empty()) {
    fmt::print("skipped: HubCommand.SharesItsCacheWithThePackageHuggingfaceHub: {}\n", why);
    GTEST_SKIP() << why;
  }
  const std::string one = add("user/ours/M-Q4_K_M.gguf", 5'000), two = add("user/theirs/M-Q8_0.gguf", 6'000);
  const auto script = [&](const std::string& text) {
    put("script.py", "from huggingface_hub import hf_hub_download, scan_cache_dir\n" + text);
    return std::system(
        (python + " " + path("script.py") + " > " + path("said") + " 2> " + path("said.err")).c_str());
  };
  ASSERT_EQ(run("pull user/ours").code, 0);
  ASSERT_EQ(script("print(hf_hub_download('user/ours', 'M-Q4_K_M.gguf', local_files_only=True), end='')\n"
                   "assert not scan_cache_dir().warnings\n"),
            0)
      << read_file(path("said.err"));
  EXPECT_EQ(read_file(read_file(path("said"))), one);
  ASSERT_EQ(script("print(hf_hub_download('user/theirs', 'M-Q8_0.gguf'), end='')\n"), 0)
      << read_file(path("said.err"));
  requests();
  EXPECT_THAT(run("list").out, HasSubstr("user/theirs:Q8_0"));
  EXPECT_EQ(read_file(find_or_pull("user/theirs:Q8_0").string()), two);
  EXPECT_THAT(requests(), SizeIs(0));
  // What theirs has fetched, a pull of ours does not fetch again.
  EXPECT_EQ(read_file(pull("user/theirs:Q8_0").string()), two);
  EXPECT_THAT(requests(), Not(Contains(StartsWith("contents"))));
}

}  // namespace
}  // namespace sluice::hub
