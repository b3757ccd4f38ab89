// Golden cases: a model file, its tokens and the logits of an independent implementation, and how far apart
// two sets of logits are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "support/relative_error.h"

namespace sluice::test {

struct Golden {
  std::string model;  ///< path of the GGUF file
  std::vector<int32_t> tokens;
  int64_t vocabulary = 0;
  std::vector<float> logits;  ///< [tokens, vocabulary]
};

/// SLUICE_TEST_TREE stands for the source tree where tests run elsewhere (./dev pack): its golden/ holds the
/// files that scripts have made.
inline std::string source_path(const std::string& relative) {
  const char* tree = std::getenv("SLUICE_TEST_TREE");
  return (tree != nullptr ? std::string(tree) : SLUICE_SOURCE_DIR) + "/" + relative;
}

inline std::vector<float> read_floats(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

/// Tokens and logits from STEM.json and STEM.logits.
inline Golden read_golden(const std::string& model, const std::string& stem) {
  const auto json = nlohmann::json::parse(read_file(stem + ".json"));
  return {model, json["tokens"].get<std::vector<int32_t>>(), json["n_vocab"].get<int64_t>(),
          read_floats(stem + ".logits")};
}

/// The path of a file that a numpy script writes (`SCRIPT FOLDER CASE`), which runs unless the file is there
/// already and newer than the script.
inline std::string made_file(const std::string& script_name, const std::string& name,
                             const std::string& file) {
  namespace fs = std::filesystem;
  if (std::getenv("SLUICE_TEST_TREE") != nullptr) return source_path("golden/" + file);
  const std::string folder = SLUICE_GOLDEN_FILES, script = source_path(script_name);
  const std::string path = folder + "/" + file;
  if (!fs::exists(path) || fs::last_write_time(path) < fs::last_write_time(script)) {
    // Tests run side by side: each writes in a folder of its own and moves the whole files, the first part of
    // a split one last.
    std::string own = folder + "/" + name + "-XXXXXX";
    fs::create_directories(folder);
    if (::mkdtemp(own.data()) == nullptr) fail("{}: cannot be made", own);
    const std::string command = SLUICE_PYTHON " '" + script + "' '" + own + "' " + name + " >/dev/null";
    if (std::system(command.c_str()) != 0) fail("{}: failed", command);
    for (const auto& entry : fs::directory_iterator(own)) {
      if (entry.path().filename() != file)
        fs::rename(entry.path(), fs::path(folder) / entry.path().filename());
    }
    fs::rename(own + "/" + file, path);
    fs::remove_all(own);
  }
  return path;
}

/// A case of tests/golden that a script there writes.
inline Golden golden_case(const std::string& name, const std::string& script = "make.py") {
  return read_golden(made_file("tests/golden/" + script, name, name + ".gguf"),
                     source_path("tests/golden/" + name));
}

/// A file of tools/oracles/models.py and the logits of the model that it holds.
inline Golden oracle_case(const std::string& name, const std::string& model) {
  const std::string file = name == "glm-split" ? name + "-00001-of-00003.gguf" : name + ".gguf";
  return read_golden(made_file("tools/oracles/models.py", name, file), source_path("tests/golden/" + model));
}

/// KL(softmax(expected) || softmax(actual)) of one row, in nats.
inline double row_kl(const float* expected, const float* actual, int64_t count) {
  const auto log_sum = [count](const float* x) {
    double largest = x[0], sum = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max<double>(largest, x[i]);
    for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - largest);
    return largest + std::log(sum);
  };
  const double p_sum = log_sum(expected), q_sum = log_sum(actual);
  double kl = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double log_p = expected[i] - p_sum;
    kl += std::exp(log_p) * (log_p - (actual[i] - q_sum));
  }
  return kl;
}

struct Divergence {
  double mean;     ///< over all rows
  double best_90;  ///< over the 90% of rows with the smallest
};

inline Divergence divergence(const Golden& golden, const std::vector<float>& actual) {
  std::vector<double> rows;
  for (size_t r = 0; r < golden.tokens.size(); ++r) {
    const auto at = static_cast<int64_t>(r) * golden.vocabulary;
    rows.push_back(row_kl(golden.logits.data() + at, actual.data() + at, golden.vocabulary));
  }
  std::sort(rows.begin(), rows.end());
  const auto mean = [&](size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += rows[i];
    return sum / static_cast<double>(count);
  };
  return {mean(rows.size()), mean(rows.size() * 9 / 10)};
}

}  // namespace sluice::test
