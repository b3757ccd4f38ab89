#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr int kMostFolders = 16;
constexpr size_t kMostCachedFiles = 100'000;

/// A name beside this one that no other process or thread makes now.
fs::path fresh_name(const fs::path& path) {
  static std::atomic<int> count = 0;
  return path.string() + fmt::format(".{}.{}.new", ::getpid(), ++count);
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
}

/// Regular files below a folder, links' targets for links, with paths as in the repository.
std::vector<File> files_below(const fs::path& folder) {
  std::vector<File> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end && files.size() < kMostCachedFiles) {
    if (entry.depth() > kMostFolders) entry.disable_recursion_pending();
    std::error_code unreadable;  // a link to nowhere is a file that is not there
    if (entry->is_regular_file(unreadable) && !unreadable) {
      const auto size = entry->file_size(unreadable);
      if (!unreadable)
        files.push_back(
            {entry->path().lexically_relative(folder).generic_string(), static_cast<int64_t>(size), ""});
    }
    entry.increment(error);
  }
  return files;
}

/// Commits of a repository's folder, the one that main names first, then the latest.
std::vector<fs::path> snapshots_of(const fs::path& folder) {
  std::string main;
  std::error_code error;
  const fs::path ref = folder / "refs/main";
  if (fs::is_regular_file(ref, error) && fs::file_size(ref, error) <= 200) main = read_file(ref);
  while (!main.empty() && (main.back() == '\n' || main.back() == '\r')) main.pop_back();
  struct Snapshot {
    bool is_main;
    fs::file_time_type time;
    fs::path path;
  };
  std::vector<Snapshot> found;
  for (fs::directory_iterator entry(folder / "snapshots", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (!entry->is_directory(unreadable)) continue;
    found.push_back({entry->path().filename() == main, entry->last_write_time(unreadable), entry->path()});
  }
  std::ranges::stable_sort(found, [](const Snapshot& a, const Snapshot& b) {
    return a.is_main != b.is_main ? a.is_main : a.time > b.time;
  });
  std::vector<fs::path> paths;
  paths.reserve(found.size());
  for (Snapshot& snapshot : found) paths.push_back(std::move(snapshot.path));
  return paths;
}

int64_t bytes_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

/// The file that a link leads to, where that is one of the repository's blobs.
std::optional<fs::path> blob_behind(const fs::path& link, const fs::path& blobs) {
  std::error_code error;
  if (!fs::is_symlink(link, error)) return {};
  const fs::path target = (link.parent_path() / fs::read_symlink(link, error)).lexically_normal();
  if (error || target.parent_path() != blobs.lexically_normal()) return {};
  return target;
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
}

/// This folder and those above it that became empty, up to `end`.
void remove_empty(fs::path folder, const fs::path& end) {
  std::error_code error;
  while (folder != end && folder.string().size() > end.string().size() && fs::is_empty(folder, error) &&
         !error) {
    fs::remove(folder, error);
    folder = folder.parent_path();
  }
}

}  // namespace

int BlobLock::open(const fs::path& path) {
  make_folder(path.parent_path());
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail("{}: {}", path.string(), std::strerror(errno));
  return fd;
}

bool BlobLock::take(bool wait) const {
  while (::flock(fd_, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return true;  // a file system without locks: nobody else can be seen
  }
  return true;
}

BlobLock::~BlobLock() { ::close(fd_); }

fs::path Cache::folder(const Repository& repository) const {
  return root_ / fmt::format("{}{}--{}", kPrefix, repository.user, repository.name);
}

fs::path Cache::blob(const Repository& repository, const std::string& hash) const {
  return folder(repository) / "blobs" / hash;
}

fs::path Cache::lock(const Repository& repository, const std::string& hash) const {
  return root_ / ".locks" / folder(repository).filename() / (hash + ".lock");
}

std::vector<Cached> Cache::models(const Repository& repository) const {
  std::vector<Cached> out;
  for (const fs::path& snapshot : snapshots_of(folder(repository))) {
    std::set<std::string> known;  // of revisions before this one
    for (const Cached& cached : out) known.insert(cached.model.quant);
    for (Model& model : models_of(files_below(snapshot))) {
      if (known.contains(model.quant)) continue;
      const fs::path first = snapshot / model.files.front().path;
      out.push_back({repository, std::move(model), first});
    }
  }
  return out;
}

std::vector<Cached> Cache::models() const {
  std::vector<Repository> repositories;
  std::error_code error;
  for (fs::directory_iterator entry(root_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const size_t dashes = name.find("--", kPrefix.size());
    if (!name.starts_with(kPrefix) || dashes == std::string::npos) continue;
    try {
      repositories.push_back(Repository::parse(name.substr(kPrefix.size(), dashes - kPrefix.size()) + "/" +
                                               name.substr(dashes + 2)));
    } catch (const UsageError&) {  // somebody else's folder
    }
  }
  std::ranges::sort(repositories);
  std::vector<Cached> out;
  for (const Repository& repository : repositories)
    std::ranges::move(models(repository), std::back_inserter(out));
  return out;
}

Cached Cache::get(const ModelName& name, const Taste& taste) const {
  const std::vector<Cached> cached = models(name.repository);
  if (cached.empty()) fail("{}: is not in {}; `sluice list` shows what is", name.text(), root_.string());
  std::vector<Model> there;
  there.reserve(cached.size());
  for (const Cached& one : cached) there.push_back(one.model);
  std::ranges::stable_sort(there, {}, &Model::bytes);
  const Model& chosen = choose(there, name, taste);
  return *std::ranges::find_if(cached, [&](const Cached& one) {
    return one.model.quant == chosen.quant && one.model.files.front().path == chosen.files.front().path;
  });
}

std::optional<Cached> Cache::find(const ModelName& name, const Taste& taste) const {
  try {
    return get(name, taste);
  } catch (const Error&) {
    return {};  // whoever knows the whole repository says what is wrong with the name
  }
}

fs::path Cache::link(const Repository& repository, const std::string& commit, const File& file,
                     const std::string& hash) const {
  fs::path path = folder(repository) / "snapshots" / commit / file.path;
  make_folder(path.parent_path());
  const fs::path target = blob(repository, hash).lexically_relative(path.parent_path());
  std::error_code error;
  if (fs::read_symlink(path, error) == target && !error) return path;
  // In one step: another process may be about to open the file.
  const fs::path fresh = fresh_name(path);
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, path, error);
  if (error) fail("{}: {}", path.string(), error.message());
  return path;
}

void Cache::set_main(const Repository& repository, const std::string& commit) const {
  const fs::path ref = folder(repository) / "refs/main";
  make_folder(ref.parent_path());
  const fs::path fresh = fresh_name(ref);
  write_file(fresh, std::as_bytes(std::span(commit)));
  std::error_code error;
  fs::rename(fresh, ref, error);
  if (error) fail("{}: {}", ref.string(), error.message());
}

int64_t Cache::remove(const Cached& cached) const {
  const fs::path folder = this->folder(cached.repository), blobs = folder / "blobs";
  std::set<fs::path> doomed, needed;
  for (const fs::path& snapshot : snapshots_of(folder)) {
    for (const File& file : files_below(snapshot)) {
      const fs::path path = snapshot / file.path;
      const bool ours =
          cached.path.string().starts_with(snapshot.string() + "/") &&
          std::ranges::find(cached.model.files, file.path, &File::path) != cached.model.files.end();
      const auto blob = blob_behind(path, blobs);
      if (blob) (ours ? doomed : needed).insert(*blob);
    }
  }
  int64_t freed = 0;
  fs::path snapshot = cached.path.parent_path();
  const std::string first = cached.model.files.front().path;
  for (auto slashes = std::ranges::count(first, '/'); slashes > 0; --slashes)
    snapshot = snapshot.parent_path();
  for (const File& file : cached.model.files) {
    const fs::path path = snapshot / file.path;
    std::error_code error;
    if (!fs::is_symlink(path, error)) freed += file.size;
    remove_file(path);
    remove_empty(path.parent_path(), folder / "snapshots");
  }
  for (const fs::path& blob : doomed) {
    if (needed.contains(blob)) continue;
    freed += bytes_of(blob);
    remove_file(blob);
  }
  if (std::error_code error; fs::is_empty(folder / "snapshots", error) && !error)
    freed += remove(cached.repository);
  return freed;
}

int64_t Cache::remove(const Repository& repository) const {
  int64_t freed = 0;
  const fs::path folder = this->folder(repository);
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail("{}: is not in {}", repository.text(), root_.string());
  for (fs::directory_iterator entry(folder / "blobs", error), end; !error && entry != end;
       entry.increment(error))
    freed += bytes_of(entry->path());
  fs::remove_all(folder, error);
  if (error) fail("{}: {}", folder.string(), error.message());
  fs::remove_all(root_ / ".locks" / folder.filename(), error);
  return freed;
}

}  // namespace sluice::hub
