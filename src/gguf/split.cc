// Opening a model: one file, or the parts NAME-00001-of-0000N.gguf that large models come in. The first part
// has the metadata and often no tensors; the others have tensors and say which part they are.
#include <algorithm>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "gguf/gguf.h"

namespace sluice::gguf {
namespace {

constexpr int64_t kMostParts = 1024;

std::string part_suffix(int64_t number, int64_t count) {
  return fmt::format("-{:05d}-of-{:05d}.gguf", number, count);
}

/// The path without its suffix, when it ends as part `number` of `count` must.
std::optional<std::string> stem_of(const std::string& path, int64_t number, int64_t count) {
  const std::string suffix = part_suffix(number, count);
  if (!path.ends_with(suffix)) return std::nullopt;
  return path.substr(0, path.size() - suffix.size());
}

/// The part that a file says it is, from 1 on; 0 when it says nothing.
int64_t part_number(const File& file) {
  const int64_t number = file.integer("split.no").value_or(-1);
  return std::clamp<int64_t>(number, -1, kMostParts) + 1;
}

}  // namespace

File File::open_one(const std::string& path) {
  MappedFile mapping(path);
  File file = parse(path, mapping.bytes());
  file.mappings_.push_back(std::move(mapping));
  return file;
}

File File::open(const std::string& path) {
  File file = open_one(path);
  const int64_t count = file.integer("split.count").value_or(1);
  if (count > 1) file.join_parts(count);
  return file;
}

void File::join_parts(int64_t count) {
  if (count > kMostParts) fail("{}: split.count is {}, expected at most {}", path_, count, kMostParts);
  const int64_t number = part_number(*this);
  const auto stem = stem_of(path_, number, count);
  if (number != 1) {
    fail("{}: is part {} of {} of a split model; open the first part{}", path_, number, count,
         stem ? ", " + *stem + part_suffix(1, count) : "");
  }
  if (!stem) {
    fail("{}: is part 1 of {} of a split model; its name must end in {} for the others to be found", path_,
         count, part_suffix(1, count));
  }
  Problems problems;
  for (int64_t i = 2; i <= count; ++i) join_part(*stem + part_suffix(i, count), i, count, problems);
  if (problems.empty()) {
    const auto tensors = static_cast<int64_t>(tensors_.size());
    const int64_t expected = integer("split.tensors.count").value_or(tensors);
    if (tensors != expected) problems.add("the parts have {} tensors, expected {}", tensors, expected);
  }
  index_tensors(problems);
  problems.throw_if_any(path_);
  parts_ = static_cast<size_t>(count);
}

/// Takes another part's tensors and mapping; what is wrong with it goes to problems.
void File::join_part(const std::string& path, int64_t number, int64_t count, Problems& problems) try {
  File part = open_one(path);
  const int64_t says = part_number(part), of = part.integer("split.count").value_or(0);
  if (says != number || of != count) {
    problems.add("{}: says that it is part {} of {}, expected {} of {}", path, says, of, number, count);
    return;
  }
  tensors_.insert(tensors_.end(), part.tensors_.begin(), part.tensors_.end());
  size_bytes_ += part.size_bytes_;
  std::move(part.mappings_.begin(), part.mappings_.end(), std::back_inserter(mappings_));
} catch (const Error& error) {
  problems.add("{}", error.what());
}

}  // namespace sluice::gguf
