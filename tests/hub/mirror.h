// A hub on this machine (mirror.py) with a cache of its own, both gone at the end.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "hub/hub.h"
#include "support/command.h"

namespace sluice::hub {

class Mirror : public testing::Test, public test::CommandFolder {
 protected:
  Mirror() : CommandFolder("hub") {
    std::filesystem::create_directories(path("files"));
    int from[2], to[2];
    EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      ::execl(SLUICE_PYTHON, SLUICE_PYTHON, SLUICE_SOURCE_DIR "/tests/hub/mirror.py", path("").c_str(),
              nullptr);
      ::_exit(99);
    }
    ::close(from[1]);
    ::close(to[0]);
    stdin_ = to[1];
    std::FILE* ports = ::fdopen(from[0], "r");
    EXPECT_EQ(std::fscanf(ports, "%d %d", &port_, &contents_port_), 2);
    std::fclose(ports);
    settings.endpoint = fmt::format("http://127.0.0.1:{}", port_);
    settings.cache = path("cache");
    // What the user of these tests has set is none of theirs.
    for (const char* name :
         {"HF_HOME", "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE",
          "TRANSFORMERS_OFFLINE", "HUGGINGFACE_HUB_CACHE", "http_proxy", "all_proxy", "ALL_PROXY"})
      ::unsetenv(name);
    ::setenv("HF_ENDPOINT", settings.endpoint.c_str(), 1);
    ::setenv("HF_HUB_CACHE", settings.cache.c_str(), 1);
    ::setenv("HF_TOKEN_PATH", path("no token").c_str(), 1);
  }
  ~Mirror() override {
    ::close(stdin_);
    ::waitpid(child_, nullptr, 0);
  }

  /// A file of a repository, with bytes that follow from its name; returns them.
  std::string add(const std::string& name, size_t bytes) {
    std::string content(bytes, '\0');
    uint32_t state = 2463534242U + static_cast<uint32_t>(std::hash<std::string>()(name));
    for (char& c : content) {
      state ^= state << 13;
      state ^= state >> 17;
      state ^= state << 5;
      c = static_cast<char>(state);
    }
    put("files/" + name, content);
    return content;
  }
  void put(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
  }
  void faults(const std::string& json) const { put("faults.json", json); }

  /// Requests since the last call.
  std::vector<std::string> requests() {
    std::vector<std::string> lines;
    std::ifstream log(path("log"));
    std::string line;
    while (std::getline(log, line)) lines.push_back(line);
    const size_t before = seen_;
    seen_ = lines.size();
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(before));
    return lines;
  }

  std::string pull_text(const std::string& name) { return read_file(pull(name).string()); }
  std::filesystem::path pull(const std::string& name) {
    return hub::pull(settings, ModelName::parse(name), taste, listener());
  }
  std::filesystem::path find_or_pull(const std::string& name) {
    return hub::find_or_pull(settings, ModelName::parse(name), taste, listener());
  }
  /// What an Error of this pull says; empty: there was none.
  std::string problem(const std::string& name) {
    try {
      pull(name);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  Listener listener() {
    return {[this](const Progress& progress) { steps.push_back(progress); },
            [this](const std::string& line) { told.push_back(line); }};
  }

  Settings settings;
  Taste taste;
  std::vector<Progress> steps;
  std::vector<std::string> told;
  int port_ = 0, contents_port_ = 0;

 private:
  pid_t child_ = -1;
  int stdin_ = -1;
  size_t seen_ = 0;
};

}  // namespace sluice::hub
