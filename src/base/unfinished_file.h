// A file that is being written. A signal that ends the program meanwhile, as Ctrl-C does, removes it: nobody
// is left with half a file of many gigabytes.
#pragma once

#include <optional>
#include <string>

namespace sluice {

/// While it lives, SIGINT, SIGTERM and SIGHUP remove the file before they end the program, where they would
/// have ended it. For regular files that are ours to remove; an ordinary error is the owner's own matter.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& path);
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;
  ~UnfinishedFile();

 private:
  int slot_ = -1;  ///< -1: it is not watched, for want of room
};

/// Opens `path` for writing and cuts it to nothing, or makes it. Where it is an ordinary file, `unfinished`
/// watches it from its first moment: a signal that comes between is dealt with afterwards. A device or a pipe
/// is not ours to remove. Returns the descriptor, or -1 with errno.
int open_unfinished(const std::string& path, std::optional<UnfinishedFile>& unfinished);

}  // namespace sluice
