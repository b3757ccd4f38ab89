// GGUF files: metadata and tensors of a memory-mapped model file (or of all parts of a split one), parsed and
// checked at the door.
// After open() nothing can be wrong with the container: every name, bound, size and alignment was checked.
// Format: GGUF versions 2 and 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "quant/types.h"

namespace sluice::gguf {

/// Metadata value types by their ids in the file.
enum class ValueType : uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

/// An array inside the mapping: elements are read one by one, strings are views into the file.
struct Array {
  ValueType type = ValueType::U8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;  ///< the elements as they lie in the file
};

/// Integers of every width become int64 or uint64, both floats double.
using Scalar = std::variant<uint64_t, int64_t, double, bool, std::string_view, Array>;

struct Value {
  ValueType type = ValueType::U8;
  Scalar value;
};

struct Entry {
  std::string_view key;
  Value value;
};

/// One tensor: `shape` in GGUF order, the contiguous dimension first, unused dimensions 1.
struct Tensor {
  std::string_view name;
  quant::Type type = quant::Type::F32;
  int dimensions = 0;
  std::array<int64_t, 4> shape = {1, 1, 1, 1};
  std::span<const std::byte> bytes;
  int64_t count() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

/// "[2048, 768]": a shape as messages print it, in GGUF order.
std::string shape_text(const Tensor& tensor);

/// "u32", "string", "array": a value type as messages print it.
const char* type_name(ValueType type);

/// The first `limit` elements of an array (all of them when it has fewer), in order.
std::vector<Scalar> elements(const Array& array, uint64_t limit);

/// Text out of a file made safe to print to a person: control characters, direction overrides and bytes that
/// are no UTF-8 become escapes (\n, \x1b, \u202e). Text longer than `limit` bytes is cut, ending in "...".
std::string printable(std::string_view text, size_t limit = 200);

class File {
 public:
  /// Maps and parses a file, and the other parts of a split model whose first part it is (split.cc). Throws
  /// Error "PATH: N problems" (base/error.h) naming everything that is wrong.
  static File open(const std::string& path);

  /// Parses bytes that stay alive and unchanged as long as the File; `name` stands for the path in messages.
  static File parse(const std::string& name, std::span<const std::byte> bytes);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t size_bytes() const { return size_bytes_; }  ///< of all parts
  size_t parts() const { return parts_; }              ///< 1 unless the model is split
  std::span<const Entry> metadata() const { return metadata_; }
  std::span<const Tensor> tensors() const { return tensors_; }

  const Value* find(std::string_view key) const;
  const Tensor* tensor(std::string_view name) const;

  // Typed reads, lenient about width: any integer type serves an integer, an integer or a bool serves a bool,
  // an integer or a float serves a number. No such key: nullopt. Key of another kind: Error naming file, key
  // and type.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;

 private:
  File(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes), size_bytes_(bytes.size()) {}

  friend class Parser;

  static File open_one(const std::string& path);
  void join_parts(int64_t count);
  void join_part(const std::string& path, int64_t number, int64_t count, Problems& problems);
  /// Sorts by_name_; names that occur twice go to problems.
  void index_tensors(Problems& problems);

  std::string path_;
  std::vector<MappedFile> mappings_;  ///< own the bytes; none when the caller does
  std::span<const std::byte> bytes_;  ///< of the first part, which alone has the metadata
  uint64_t size_bytes_ = 0;
  size_t parts_ = 1;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::vector<Entry> metadata_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> by_key_;   ///< indices into metadata_, sorted by key
  std::vector<uint32_t> by_name_;  ///< indices into tensors_, sorted by name
};

}  // namespace sluice::gguf
