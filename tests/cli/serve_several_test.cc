// sluice serve with several models: which there are, which one a request gets, and when one leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/model_shelf.h"
#include "server/client.h"
#include "support/command.h"
#include "support/served.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;
using test::Client;
using test::Reply;
using testing::ElementsAre;
using testing::HasSubstr;

class ServeSeveral : public testing::Test, public test::CommandFolder {
 protected:
  ServeSeveral() : CommandFolder("several") {
    const fs::path tale = SLUICE_SOURCE_DIR "/models/fairy-tales.gguf";
    fs::create_directories(path("models/sub"));
    fs::create_symlink(tale, path("models/one.gguf"));
    fs::create_symlink(tale, path("models/sub/two-Q4_K_M.gguf"));
    fs::copy_file(tale, path("models/three.gguf"));
    fs::create_symlink(tale, path("models/mmproj-one.gguf"));
  }
  Reply post(const std::string& name, json more = json::object()) {
    json body = {{"model", name}, {"prompt", "The wolf"}, {"max_tokens", 3}};
    body.update(more);
    return Client(port()).post("/v1/completions", body);
  }
  json models() { return Client(port()).ask("GET", "/models").json()["data"]; }
  /// The names of models in this state.
  std::vector<std::string> in_state(const std::string& state) {
    std::vector<std::string> out;
    for (const json& model : models())
      if (model["status"]["value"] == state) out.push_back(model["id"]);
    return out;
  }
  void serve(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--port", "0", "-c", "256", "--parallel", "2", "-t", "1"});
    served.emplace(*this, std::move(flags));
  }
  uint16_t port() const { return static_cast<uint16_t>(served->port()); }
  std::optional<test::Served> served;
};

TEST_F(ServeSeveral, LoadsTheOneThatARequestNames) {
  serve({"--models-dir", path("models")});
  EXPECT_THAT(in_state("unloaded"), ElementsAre("one", "three", "two-Q4_K_M"));
  EXPECT_EQ(Client(port()).ask("GET", "/health").status, 200);
  EXPECT_EQ(Client(port()).ask("GET", "/props").status, 503);
  const json answer = post("two-Q4_K_M").json();
  EXPECT_EQ(answer["model"], "two-Q4_K_M");
  EXPECT_FALSE(answer["choices"][0]["text"].get<std::string>().empty());
  EXPECT_THAT(in_state("loaded"), ElementsAre("two-Q4_K_M"));
  EXPECT_EQ(Client(port()).ask("GET", "/props").json()["model_alias"], "two-Q4_K_M");
  const Reply unknown = post("four");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
  EXPECT_THAT(unknown.json()["error"]["message"].get<std::string>(), HasSubstr("one, three, two-Q4_K_M"));
  EXPECT_EQ(Client(port()).ask("GET", "/v1/models/one").json()["id"], "one");
  EXPECT_EQ(Client(port()).ask("GET", "/v1/models/four").status, 404);
  // A request that names none gets the one in use; Ollama's clients put a tag behind names.
  EXPECT_EQ(Client(port()).post("/v1/completions", json{{"prompt", "a"}, {"max_tokens", 1}}).json()["model"],
            "two-Q4_K_M");
  EXPECT_EQ(Client(port())
                .post("/api/generate", json{{"model", "one:latest"},
                                            {"prompt", "a"},
                                            {"stream", false},
                                            {"raw", true},
                                            {"options", {{"num_predict", 1}}}})
                .json()["model"],
            "one");
  EXPECT_EQ(Client(port()).ask("GET", "/api/tags").json()["models"].size(), 3u);
  EXPECT_EQ(Client(port()).ask("GET", "/api/ps").json()["models"].size(), 2u);
  served->signal(SIGTERM);
  EXPECT_EQ(served->wait(), 0) << served->log();
}

TEST_F(ServeSeveral, TheOneUsedLongestAgoLeaves) {
  serve({"-m", path("models/one.gguf"), "-m", path("models/three.gguf"), "-m",
         path("models/sub/two-Q4_K_M.gguf"), "--alias", "a,b,c", "--models-max", "2"});
  for (const char* name : {"a", "b", "a", "c"}) EXPECT_EQ(post(name).json()["model"], name);
  EXPECT_THAT(in_state("loaded"), ElementsAre("a", "c"));
  served->wait_for("sluice: b is unloaded");  // the line comes when its memory is back
  EXPECT_THAT(served->log(), HasSubstr("sluice: b is unloaded"));
}

TEST_F(ServeSeveral, AModelThatNobodyAsksForLeaves) {
  serve({"--models-dir", path("models"), "--idle-unload", "0.3"});
  EXPECT_EQ(post("one").status, 200);
  for (int i = 0; i < 500 && !in_state("loaded").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_THAT(in_state("loaded"), ElementsAre());
  EXPECT_EQ(post("one").status, 200);  // and comes again
}

TEST_F(ServeSeveral, NoneLeavesWhileItAnswers) {
  serve({"--models-dir", path("models"), "--models-max", "1"});
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 9; ++i) {
    const std::string name = i % 3 == 0 ? "one" : i % 3 == 1 ? "three" : "two-Q4_K_M";
    threads.emplace_back([&, name] {
      const Reply reply = post(name, {{"max_tokens", 40}, {"ignore_eos", true}});
      if (reply.status == 200 && reply.json()["model"] == name &&
          reply.json()["usage"]["completion_tokens"] == 40)
        ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 9) << served->log();
}

TEST_F(ServeSeveral, LoadsAndUnloadsWhatIsAskedFor) {
  serve({"--models-dir", path("models")});
  const auto ask = [&](const char* what, const json& body) {
    return Client(port()).post(std::string("/models/") + what, body);
  };
  const auto wait_for = [&](const std::string& state, size_t count) {
    for (int i = 0; i < 1500 && in_state(state).size() != count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return in_state(state);
  };
  EXPECT_EQ(ask("load", {{"model", "one"}}).json(), (json{{"success", true}}));
  EXPECT_THAT(wait_for("loaded", 1), ElementsAre("one"));
  EXPECT_EQ(Client(port()).ask("GET", "/models/one").json()["meta"]["n_ctx"], 256);
  EXPECT_EQ(ask("unload", {{"model", "one"}}).json(), (json{{"success", true}}));
  EXPECT_THAT(wait_for("unloaded", 3), ElementsAre("one", "three", "two-Q4_K_M"));
  served->wait_for("sluice: one is unloaded");  // the line comes when its memory is back
  EXPECT_THAT(served->log(), HasSubstr("sluice: one is unloaded"));
  EXPECT_EQ(ask("unload", {{"model", "one"}}).status, 200);  // it is so already
  for (const char* what : {"load", "unload"}) {
    EXPECT_EQ(ask(what, {{"model", "four"}}).status, 404);
    EXPECT_EQ(ask(what, {{"prompt", "one"}}).status, 400);
    EXPECT_EQ(ask(what, {{"model", std::string(70'000, 'x')}}).status, 413);
  }
  // An answer ends before its model goes, and who asks meanwhile waits until it is back.
  std::thread answer([&] {
    const Reply reply = post("one", {{"max_tokens", 200}, {"ignore_eos", true}});
    EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 200) << reply.body;
  });
  EXPECT_THAT(wait_for("loaded", 1), ElementsAre("one"));
  EXPECT_EQ(ask("unload", {{"model", "one"}}).status, 200);
  EXPECT_EQ(post("one").status, 200);
  answer.join();
  served->signal(SIGTERM);
  EXPECT_EQ(served->wait(), 0) << served->log();
}

TEST_F(ServeSeveral, AFileThatIsNoneIsToldOfAndTheOthersGoOn) {
  std::ofstream(path("models/broken.gguf")) << "GGUF, but no more";
  serve({"--models-dir", path("models")});
  const Reply broken = post("broken");
  EXPECT_EQ(broken.status, 503);
  EXPECT_THAT(broken.json()["error"]["message"].get<std::string>(), HasSubstr("broken.gguf"));
  EXPECT_THAT(in_state("failed"), ElementsAre("broken"));
  EXPECT_EQ(post("one").status, 200);
}

TEST_F(ServeSeveral, NamesWhatIsWrong) {
  EXPECT_THAT(run("serve --models-dir " + path("none")).err, HasSubstr("--models-dir " + path("none")));
  fs::create_directories(path("empty"));
  EXPECT_THAT(run("serve --models-dir " + path("empty")).err, HasSubstr("no GGUF model"));
  const std::string one = path("models/one.gguf");
  EXPECT_THAT(run("serve -m " + one + " -m " + one).err, HasSubstr("one: two models have this name"));
  EXPECT_THAT(run("serve -m " + one + " -m /nowhere.gguf").err, HasSubstr("/nowhere.gguf: No such file"));
}

}  // namespace
}  // namespace sluice::cli
