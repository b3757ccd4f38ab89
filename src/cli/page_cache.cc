#include "cli/page_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/checked_options.h"
#include "cli/fit.h"
#include "cli/memory_view.h"

namespace sluice::cli {
namespace {

constexpr size_t kSampled = 4096;  ///< bytes of a tensor that are looked at
constexpr int kMostThreads = 4;    ///< that read and write pages

/// Text to which single facts are added so that no two lists of facts read the same.
class Facts {
 public:
  void add(std::string_view fact) { text_ += fmt::format("{}:{};", fact.size(), fact); }
  void add(int64_t number) { add(std::to_string(number)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void add_value(Facts& facts, const gguf::Value& value) {
  facts.add(static_cast<int64_t>(value.type));
  std::visit(
      [&facts](const auto& scalar) {
        using T = std::decay_t<decltype(scalar)>;
        if constexpr (std::is_same_v<T, gguf::Array>) {
          facts.add(static_cast<int64_t>(scalar.type));
          facts.add(as_text(scalar.bytes));
        } else {
          facts.add(fmt::format("{}", scalar));
        }
      },
      value.value);
}

}  // namespace

void add_page_cache_options(CLI::App& command, PageCacheOptions& options) {
  add_size_option(
      command, "--cache-ram", [&options](int64_t bytes) { options.ram_bytes = bytes; },
      "of the host's memory for cached prompts that leave the device's cache, as 16GiB (default: none)");
  command
      .add_option("--cache-disk", options.disk,
                  "folder for cached prompts, which outlive the server, and how large it may be (32GiB where "
                  "nothing is said); only its owner can read what is there")
      ->type_name("DIR[:SIZE]");
}

store::FolderOptions page_folder_of(const std::string& text) {
  store::FolderOptions folder{.path = text};
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos && colon + 1 < text.size() &&
      std::isdigit(static_cast<unsigned char>(text[colon + 1])) != 0 &&
      text.find('/', colon) == std::string::npos) {
    folder.path = text.substr(0, colon);
    folder.limit_bytes = memory_size_of(text.substr(colon + 1));
  }
  if (folder.path.empty()) throw UsageError(fmt::format("--cache-disk {}: expected DIR or DIR:SIZE", text));
  folder.path = std::filesystem::absolute(folder.path);
  return folder;
}

namespace {

void add_content(Facts& facts, const gguf::File& file) {
  facts.add(static_cast<int64_t>(file.size_bytes()));
  for (const gguf::Entry& entry : file.metadata()) {
    facts.add(entry.key);
    add_value(facts, entry.value);
  }
  for (const gguf::Tensor& tensor : file.tensors()) {
    facts.add(tensor.name);
    facts.add(gguf::shape_text(tensor));
    facts.add(as_text(tensor.bytes.first(std::min(tensor.bytes.size(), kSampled))));
  }
}

}  // namespace

std::string content_identity(const gguf::File& file) {
  Facts facts;
  add_content(facts, file);
  return store::root_key(facts.text()).hex();
}

std::string model_identity(const gguf::File& file) {
  Facts facts;
  struct stat found {};
  if (::stat(file.path().c_str(), &found) == 0) {
    facts.add(found.st_mtim.tv_sec);
    facts.add(found.st_mtim.tv_nsec);
  }
  add_content(facts, file);
  return store::root_key(facts.text()).hex();
}

std::unique_ptr<store::PageStore> make_page_store(const PageCacheOptions& options,
                                                  program::Executable& executable,
                                                  const std::string& identity, const std::string& name) {
  if (options.ram_bytes == 0 && options.disk.empty()) return nullptr;
  program::PageCopier* const copier = executable.copier();
  if (copier == nullptr)
    throw UsageError("--cache-ram, --cache-disk: this backend copies no pages of its cache");
  const int64_t available = available_memory_bytes();
  if (options.ram_bytes > available)
    fail("--cache-ram: {} bytes are more than the {} of memory that are available", options.ram_bytes,
         available);
  store::StoreOptions store;
  store.identity = fmt::format("{}, {}", identity, copier->format());
  store.name = name;
  store.slot_bytes = std::max(copier->bytes(program::Kept::Page), copier->bytes(program::Kept::State));
  store.ram_bytes = options.ram_bytes;
  if (!options.disk.empty()) store.disk = page_folder_of(options.disk);
  store.threads = std::clamp(usable_threads() / 4, 1, kMostThreads);
  store.memory = [copier](int64_t bytes) { return copier->memory(bytes); };
  return std::make_unique<store::PageStore>(std::move(store));
}

}  // namespace sluice::cli
