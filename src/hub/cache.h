// The folder of downloaded files that clients of the model hub share: models--USER--REPO with blobs (contents
// by their hash), snapshots/COMMIT (the repository's files as links to blobs) and refs (names of commits).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/choice.h"
#include "hub/names.h"

namespace sluice::hub {

/// A model in the cache.
struct Cached {
  Repository repository;
  Model model;
  std::filesystem::path path;  ///< of its first file
  std::string name() const { return repository.text() + ":" + model.quant; }
};

/// One process at a time works on a blob; the lock is clients' of the hub (flock). It ends with the object or
/// the process.
class BlobLock {
 public:
  /// Tells whether somebody else has it before it waits.
  template <typename OnWait>
  BlobLock(const std::filesystem::path& path, OnWait on_wait) : fd_(open(path)) {
    if (!take(false)) {
      on_wait();
      take(true);
    }
  }
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;
  ~BlobLock();

 private:
  static int open(const std::filesystem::path& path);
  bool take(bool wait) const;
  int fd_;
};

class Cache {
 public:
  explicit Cache(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path blob(const Repository& repository, const std::string& hash) const;
  std::filesystem::path lock(const Repository& repository, const std::string& hash) const;

  /// Whole models of a repository: those of revision main first, then those of other revisions that it has
  /// none of the same quant for.
  std::vector<Cached> models(const Repository& repository) const;
  /// Of all repositories, in the order of their names.
  std::vector<Cached> models() const;
  /// The model that a name means among these. Throws Error that lists what there is.
  Cached get(const ModelName& name, const Taste& taste) const;
  /// The same; none where it would throw.
  std::optional<Cached> find(const ModelName& name, const Taste& taste) const;

  /// Makes a file of a revision a link to its blob. Returns the link's path.
  std::filesystem::path link(const Repository& repository, const std::string& commit, const File& file,
                             const std::string& hash) const;
  void set_main(const Repository& repository, const std::string& commit) const;

  /// Removes a model's files with the blobs that no other link needs, and what was left of unfinished
  /// downloads where nothing else remains. Returns the bytes that are free now.
  int64_t remove(const Cached& model) const;
  /// Removes all that there is of a repository.
  int64_t remove(const Repository& repository) const;

 private:
  std::filesystem::path folder(const Repository& repository) const;
  std::filesystem::path root_;
};

}  // namespace sluice::hub
