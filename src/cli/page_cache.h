// Where pages of a prompt cache go that leave the device: flags of serve, and the store that they ask for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/assemble.h"
#include "cli/cli11.h"
#include "store/page_store.h"

namespace sluice::cli {

struct PageCacheOptions {
  int64_t ram_bytes = 0;
  std::string disk;  ///< DIR[:SIZE]; empty: none
};

/// Adds --cache-ram and --cache-disk.
void add_page_cache_options(CLI::App& command, PageCacheOptions& options);

/// DIR[:SIZE]. Throws UsageError.
store::FolderOptions page_folder_of(const std::string& text);

/// What makes a model this one and no other: all that its file says, the file's size and time of change, and
/// some bytes of every tensor.
std::string model_identity(const gguf::File& file);
/// The same but for the time of change, which a copy on another host may have of its own.
std::string content_identity(const gguf::File& file);

/// The store that is asked for; null: none is. Throws Error where it makes no sense, or there is too little
/// memory.
std::unique_ptr<store::PageStore> make_page_store(const PageCacheOptions& options,
                                                  program::Executable& executable,
                                                  const std::string& identity, const std::string& name);

}  // namespace sluice::cli
