// Pages on a disk: one file a page, DIR/MODEL/KEY, where MODEL and KEY are 32 hexadecimal digits each
// (page_key.h). A file is written under another name and renamed into place, so that it is whole or not
// there; a checksum finds what was damaged since. The same key means the same bytes, so processes share a
// folder without knowing of each other. What is there is told by the names; files used longest ago (by their
// time of change) go first when all models' together are more than the limit.
//
// Prompts are private: folders are their owner's alone (0700), and so are files (0600).
//
// Whatever happens to the files, pages are at worst not found. Of any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/page_key.h"

namespace sluice::store {

struct FolderOptions {
  std::filesystem::path path;
  int64_t limit_bytes = int64_t{32} << 30;      ///< of all models' files together
  int64_t least_free_bytes = int64_t{1} << 30;  ///< that others keep on the disk
};

/// A model's files in a folder.
struct FolderModel {
  PageKey root;
  std::string name;  ///< as whoever wrote them called it
  int64_t pages = 0, bytes = 0;
  int64_t used_ns = 0;  ///< when the last one was read or written, since 1970
};

class PageFolder {
 public:
  /// A model's pages in a folder. Throws what check() does; what is wrong with the disk is told by stats().
  PageFolder(FolderOptions options, const PageKey& root, std::string name);

  /// Whether the page was there when the folder was last looked at. Asks no disk.
  bool holds(const PageKey& key) const;
  /// False: it is not there, is damaged (and removed), or of another length.
  bool read(const PageKey& key, std::span<std::byte> bytes);
  /// False: the disk would not take it; stats() say why, and for a while nothing more is written.
  bool write(const PageKey& key, std::span<const std::byte> bytes);
  void remove(const PageKey& key);
  /// Finds what others have written and removed, and removes what nobody finished.
  void look();
  /// Removes this model's pages.
  void clear();

  struct Stats {
    int64_t pages = 0, bytes = 0;  ///< this model's
    int64_t all_bytes = 0;         ///< all models'
    int64_t limit_bytes = 0;
    int64_t damaged = 0;  ///< that were found to be so
    std::string problem;  ///< why the last page was not written; empty: it was
  };
  Stats stats() const;

  /// Throws Error where others could put files into the folder, or it is none. It is made where it is not
  /// there; what is wrong with the disk is no reason to throw.
  static void check(const std::filesystem::path& path);
  /// All models in a folder, the one used last first. Throws Error where there is no folder.
  static std::vector<FolderModel> list(const std::filesystem::path& path);
  /// Removes a model's files, or all models' (null), whoever uses them; what else lies in the folder stays.
  static void clear(const std::filesystem::path& path, const PageKey* root);

 private:
  using Name = std::pair<PageKey, PageKey>;  ///< of a file: the model's and the page's
  struct File {
    int64_t bytes = 0;
    int64_t used_ns = 0;
  };
  struct NameHash {
    size_t operator()(const Name& name) const {
      return PageKeyHash{}(name.second) ^ PageKeyHash {}(name.first);
    }
  };
  /// What is there, as far as is known.
  struct Index {
    std::unordered_map<Name, File, NameHash> files;
    std::set<std::pair<int64_t, Name>> oldest;  ///< by used_ns
    int64_t bytes = 0, own_bytes = 0, own_pages = 0;

    void note(const PageKey& root, const Name& name, const File& file);
    void forget(const PageKey& root, const Name& name);
  };
  std::filesystem::path path_of(const Name& name) const;
  void make_model_folder();
  bool make_room(int64_t bytes);
  bool refuse(const std::string& why);
  std::string put(const std::filesystem::path& path, const PageKey& key, std::span<const std::byte> bytes);

  const FolderOptions options_;
  const PageKey root_;
  const std::string name_;
  mutable std::mutex mutex_;  // of all that follows
  Index index_;
  int64_t damaged_ = 0;
  std::string problem_;
  int64_t no_writes_before_ns_ = 0;
};

}  // namespace sluice::store
