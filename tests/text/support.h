// What the tests of this room share: Python oracles, random texts, a small vocabulary, time bounds.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text {

#ifdef SLUICE_SANITIZED
inline constexpr double kSlowdown = 15;
#else
inline constexpr double kSlowdown = 1;
#endif

/// Seconds of processor time that `work` takes: a busy machine does not make a test fail.
template <typename Work>
double seconds(Work work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// What a script beside the tests prints, line by line. Fails the test when it does not end well.
inline std::vector<std::string> python_lines(const std::string& script, const std::string& arguments) {
  const std::string command =
      std::string(SLUICE_PYTHON) + " " + SLUICE_SOURCE_DIR + "/tests/text/" + script + " " + arguments;
  std::vector<std::string> lines;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return lines;
  }
  std::string all;
  char buffer[65536];
  while (const size_t got = fread(buffer, 1, sizeof buffer, pipe)) all.append(buffer, got);
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    lines.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// A file for an oracle to read; removed at the end of the scope.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content) {
    static int count = 0;
    path_ = testing::TempDir() + "sluice_text_" + std::to_string(getpid()) + "_" + std::to_string(count++);
    std::ofstream(path_, std::ios::binary) << content;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Where larger shared test data may lie: beside the source tree.
inline std::string shared_data(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + "/../shared/" + name;
}

/// The texts of PATH.inp, each with the ids that PATH.out lists for it.
inline std::vector<std::pair<std::string, std::vector<int32_t>>> shared_token_lists(const std::string& path) {
  std::ifstream texts(path + ".inp", std::ios::binary), lists(path + ".out");
  const std::string all((std::istreambuf_iterator<char>(texts)), {});
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::pair<std::string, std::vector<int32_t>>> out;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find(separator, at);
    if (end == std::string::npos) {
      ADD_FAILURE() << path << ".inp does not end in the separator";
      break;
    }
    std::string line;
    std::getline(lists, line);
    std::istringstream numbers(line);
    out.emplace_back(all.substr(at, end - at),
                     std::vector<int32_t>(std::istream_iterator<int32_t>(numbers), {}));
    at = end + separator.size();
  }
  return out;
}

inline std::string repeated(std::string_view unit, size_t bytes) {
  std::string out;
  out.reserve(bytes + unit.size());
  while (out.size() < bytes) out += unit;
  return out;
}

/// `unit` repeated to a megabyte: texts that make a careless splitter or merger quadratic.
inline const std::vector<std::string>& long_run_units() {
  static const std::vector<std::string> units = {
      " ",  "7",  "a",    "\n",     "a ",      "\r\n",   " \n",       "\t",
      "!",  "'",  "A",    "\u00e9", "\u4e2d",  "\u0301", "\u3000",    "a\u0301",
      "aB", "1 ", "\x01", " \x01",  "\u4e2d ", "\xFF",   "\U0001F600"};
  return units;
}

}  // namespace sluice::text
