// Files of logits that `sluice perplexity` saves and compares against: the tokens, how they were cut into
// windows, and a row for each token that was predicted. Little-endian:
//
//   bytes 0-7    "SLLOGITS"
//   uint32       version, 1
//   uint32       vocabulary
//   int64        window length, stride, tokens n, rows r
//   int32   [n]  tokens
//   float32 [r][vocabulary]   the logits that predict each scored token, windows in order
//   (engine/perplexity.h)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "gguf/writer.h"

namespace sluice::cli {

/// How a text is cut (engine::windows_of).
struct Cut {
  int64_t length = 0, stride = 0;
};

class SavedLogits {
 public:
  /// Maps a file and checks that it is whole. Throws Error "PATH: ...".
  explicit SavedLogits(const std::string& path);

  int64_t vocabulary() const { return vocabulary_; }
  Cut cut() const { return cut_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t rows() const { return rows_; }
  std::span<const float> row(int64_t index) const;

 private:
  MappedFile file_;
  Cut cut_;
  int64_t vocabulary_ = 0, rows_ = 0;
  std::vector<int32_t> tokens_;
  const float* logits_ = nullptr;
};

/// Writes such a file row by row; one that was not completed is removed.
class LogitsWriter {
 public:
  /// Throws Error "PATH: reason".
  LogitsWriter(const std::string& path, int64_t vocabulary, Cut cut, std::span<const int32_t> tokens,
               int64_t rows);
  void row(std::span<const float> logits) { file_.write(std::as_bytes(logits)); }
  void complete() { file_.complete(); }

 private:
  gguf::OutputFile file_;
};

}  // namespace sluice::cli
