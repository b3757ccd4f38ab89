// Writing GGUF files (version 3): all metadata and the list of tensors first, then the tensors' bytes as a
// stream. Knows the container only; what keys and tensors a model needs is its caller's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/unfinished_file.h"
#include "gguf/gguf.h"
#include "quant/types.h"

namespace sluice::gguf {

/// A metadata value; the C++ type decides the type in the file.
using WriteValue =
    std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string, uint64_t,
                 int64_t, double, std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
                 std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>, std::vector<float>,
                 std::vector<bool>, std::vector<std::string>, std::vector<uint64_t>, std::vector<int64_t>,
                 std::vector<double>>;

struct WriteEntry {
  std::string key;
  WriteValue value;
};

/// One tensor to come: `shape` in GGUF order, 1 to 4 dimensions, rows a multiple of the type's block.
struct WriteTensor {
  std::string name;
  quant::Type type = quant::Type::F32;
  std::vector<int64_t> shape;

  int64_t count() const;
  int64_t bytes() const;
};

/// Everything of a file but the tensors' bytes. "general.alignment" among the metadata (a uint32_t) is
/// obeyed.
struct WritePlan {
  std::vector<WriteEntry> metadata;
  std::vector<WriteTensor> tensors;

  /// What stands in the file before the tensors' bytes.
  std::string header() const;
  /// Size of the whole file.
  uint64_t file_bytes() const;
};

/// A file that removes itself unless it was completed, also when Ctrl-C ends the program. Bytes go out in
/// large pieces at multiples of their size, which a page cache takes twice as fast as pieces at odd offsets.
class OutputFile {
 public:
  /// Creates or empties the file. Throws Error "PATH: reason". Devices and pipes are written, never removed.
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  /// Writes what is left and closes the file, which stays.
  void complete();

 private:
  void flush();

  std::string path_;
  int fd_ = -1;
  bool complete_ = false;
  std::optional<UnfinishedFile> unfinished_;  ///< of a file that is certainly an ordinary one
  std::vector<std::byte> buffer_;
  size_t filled_ = 0;
};

/// Writes one file. Without finish() the file is incomplete and the destructor removes it.
class Writer {
 public:
  /// Creates or empties the file and writes what comes before the tensors. Throws Error "PATH: reason".
  Writer(std::string path, const WritePlan& plan);

  /// The next bytes of the tensors, in the plan's order; padding between tensors is the writer's business.
  /// One call must not reach over the end of a tensor. Throws Error "PATH: reason".
  void write(std::span<const std::byte> bytes);

  /// Ends the file when all tensors are complete. Throws Error "PATH: reason".
  void finish();

 private:
  OutputFile file_;
  uint64_t alignment_;
  std::vector<uint64_t> tensor_bytes_;
  size_t current_ = 0;         ///< the tensor that bytes go to
  uint64_t current_done_ = 0;  ///< its bytes so far
};

}  // namespace sluice::gguf
