// A file that is being written. A signal that ends the program meanwhile, as Ctrl-C does, removes it: nobody
// is left with half a file of many gigabytes.
#pragma once

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

}  // namespace sluice
