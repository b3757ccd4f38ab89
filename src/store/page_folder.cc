#include "store/page_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "store/checksum.h"

namespace sluice::store {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMagic = "SLUICEPG";
constexpr uint32_t kVersion = 1;
constexpr const char* kModelName = "model";              // the file with a model's name in its folder
constexpr std::string_view kUnfinished = "unfinished-";  // names of files begin so until they are whole
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLeftAlone = 600 * kSecond;  ///< an unfinished file that nobody has changed for so long
constexpr int64_t kPause = 10 * kSecond;       ///< without writing, after the disk has refused

struct Header {
  std::array<char, 8> magic{};
  uint32_t version = kVersion, unused = 0;
  PageKey key;
  uint64_t bytes = 0;         ///< behind the header
  uint64_t checksum = 0;      ///< of these
  uint64_t own_checksum = 0;  ///< of all above
};
static_assert(sizeof(Header) == 56);

uint64_t own_checksum(const Header& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, own_checksum)));
}

Header header_of(const PageKey& key, std::span<const std::byte> bytes) {
  Header header;
  std::ranges::copy(kMagic, header.magic.begin());
  header.key = key;
  header.bytes = bytes.size();
  header.checksum = checksum(bytes);
  header.own_checksum = own_checksum(header);
  return header;
}

/// Closes at its end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

std::string reason() { return std::generic_category().message(errno); }

int64_t changed_ns(const struct stat& found) {
  return int64_t{found.st_mtim.tv_sec} * kSecond + found.st_mtim.tv_nsec;
}

int64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

/// Whether a folder is this user's own, and no link.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
}

/// Calls visit(model, path) for every folder that has a model's name.
template <typename F>
void each_model(const fs::path& path, F visit) {
  std::error_code gone;
  for (fs::directory_iterator at(path, gone), end; !gone && at != end; at.increment(gone)) {
    const auto root = PageKey::from_hex(at->path().filename().string());
    if (root && is_own_folder(at->path())) visit(*root, at->path());
  }
}

/// Calls visit(name, path, what is there) for every file of a model.
template <typename F>
void each_file(const fs::path& model, F visit) {
  std::error_code gone;
  for (fs::directory_iterator at(model, gone), end; !gone && at != end; at.increment(gone)) {
    struct stat found {};
    if (::lstat(at->path().c_str(), &found) == 0 && S_ISREG(found.st_mode))
      visit(at->path().filename().string(), at->path(), found);
  }
}

bool read_all(int fd, void* to, size_t bytes, int64_t offset) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, at, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, offset += got, bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    at += put, bytes -= static_cast<size_t>(put);
  }
  return true;
}

}  // namespace

void PageFolder::check(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) {
    fs::create_directories(path.parent_path(), failed);
    ::mkdir(path.c_str(), 0700);
  }
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return;  // pages go nowhere; a page that is written says why
  if (!S_ISDIR(found.st_mode)) fail("{}: is no folder; expected one for the prompt cache", path.string());
  if (found.st_uid != ::geteuid() && found.st_uid != 0)
    fail("{}: belongs to another user; expected a folder of one's own for the prompt cache", path.string());
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    fail("{}: others may write there; expected a folder of one's own for the prompt cache (chmod go-w)",
         path.string());
}

PageFolder::PageFolder(FolderOptions options, const PageKey& root, std::string name)
    : options_(std::move(options)), root_(root), name_(std::move(name)) {
  check(options_.path);
  make_model_folder();
  look();
}

void PageFolder::make_model_folder() {
  const fs::path folder = options_.path / root_.hex();
  if (::mkdir(folder.c_str(), 0700) != 0) return;
  try {
    write_file((folder / kModelName).string(), std::as_bytes(std::span(name_)));
    ::chmod((folder / kModelName).c_str(), 0600);
  } catch (const Error&) {  // it is for people alone
  }
}

fs::path PageFolder::path_of(const Name& name) const {
  return options_.path / name.first.hex() / name.second.hex();
}

void PageFolder::Index::note(const PageKey& root, const Name& name, const File& file) {
  forget(root, name);
  files.emplace(name, file);
  oldest.emplace(file.used_ns, name);
  bytes += file.bytes;
  if (name.first == root) own_bytes += file.bytes, ++own_pages;
}

void PageFolder::Index::forget(const PageKey& root, const Name& name) {
  const auto found = files.find(name);
  if (found == files.end()) return;
  bytes -= found->second.bytes;
  if (name.first == root) own_bytes -= found->second.bytes, --own_pages;
  oldest.erase({found->second.used_ns, name});
  files.erase(found);
}

bool PageFolder::holds(const PageKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.files.contains({root_, key});
}

bool PageFolder::read(const PageKey& key, std::span<std::byte> bytes) {
  const Name name{root_, key};
  const fs::path path = path_of(name);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  Header header;
  const bool opened = file >= 0;
  const bool whole = opened && read_all(file, &header, sizeof header, 0) &&
                     read_all(file, bytes.data(), bytes.size(), sizeof header);
  Header expected;
  if (whole) expected = header_of(key, bytes);
  if (whole &&
      std::ranges::equal(std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(&expected, 1)))) {
    const int64_t now = wall_ns();
    ::futimens(file, nullptr);
    const std::lock_guard lock(mutex_);
    index_.note(root_, name, {static_cast<int64_t>(sizeof header + bytes.size()), now});
    return true;
  }
  if (opened) ::unlink(path.c_str());
  const std::lock_guard lock(mutex_);
  damaged_ += opened;
  index_.forget(root_, name);
  return false;
}

bool PageFolder::refuse(const std::string& why) {
  const std::lock_guard lock(mutex_);
  problem_ = why;
  no_writes_before_ns_ = now_ns() + kPause;
  return false;
}

bool PageFolder::write(const PageKey& key, std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(sizeof(Header) + bytes.size());
  {
    const std::lock_guard lock(mutex_);
    if (index_.files.contains({root_, key})) return true;
    if (now_ns() < no_writes_before_ns_) return false;
  }
  if (!make_room(size)) return refuse(fmt::format("{}: has no room for a page", options_.path.string()));
  static std::atomic<uint64_t> last_unfinished{0};  // this process may have several such folders
  const fs::path unfinished =
      options_.path / root_.hex() / fmt::format("{}{}-{}", kUnfinished, ::getpid(), ++last_unfinished);
  const fs::path path = path_of({root_, key});
  std::string why = put(unfinished, key, bytes);
  if (why.empty() && ::rename(unfinished.c_str(), path.c_str()) != 0) why = reason();
  if (!why.empty()) {
    ::unlink(unfinished.c_str());
    return refuse(fmt::format("{}: {}", path.string(), why));
  }
  const std::lock_guard lock(mutex_);
  problem_.clear();
  index_.note(root_, {root_, key}, {size, wall_ns()});
  return true;
}

// Why it was not written; empty: it was.
std::string PageFolder::put(const fs::path& path, const PageKey& key, std::span<const std::byte> bytes) {
  constexpr int kHow = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  int fd = ::open(path.c_str(), kHow, 0600);
  if (fd < 0 && errno == ENOENT) {  // somebody cleared the folder
    make_model_folder();
    fd = ::open(path.c_str(), kHow, 0600);
  }
  const Descriptor file(fd);
  if (file < 0) return reason();
  const Header header = header_of(key, bytes);
  if (!write_all(file, &header, sizeof header) || !write_all(file, bytes.data(), bytes.size()))
    return reason();
  return "";
}

// Removes the files used longest ago until so many bytes more are within the limit; where others have filled
// the disk, as many as come in. False: there is no room.
bool PageFolder::make_room(int64_t bytes) {
  struct statvfs disk {};
  const bool known = ::statvfs(options_.path.c_str(), &disk) == 0;  // if not, writing will tell
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const bool full = known && free < static_cast<double>(options_.least_free_bytes + bytes);
  int64_t removed = 0;
  while (true) {
    Name name;
    {
      const std::lock_guard lock(mutex_);
      if (index_.bytes + bytes <= options_.limit_bytes && (!full || removed >= bytes)) return true;
      if (index_.oldest.empty()) return false;
      name = index_.oldest.begin()->second;
      removed += index_.files.at(name).bytes;
      index_.forget(root_, name);
    }
    ::unlink(path_of(name).c_str());
  }
}

void PageFolder::remove(const PageKey& key) {
  ::unlink(path_of({root_, key}).c_str());
  const std::lock_guard lock(mutex_);
  index_.forget(root_, {root_, key});
}

void PageFolder::look() {
  Index found;
  const int64_t now = wall_ns();
  each_model(options_.path, [&](const PageKey& root, const fs::path& folder) {
    each_file(folder, [&](const std::string& name, const fs::path& path, const struct stat& file) {
      if (const auto key = PageKey::from_hex(name)) {
        found.note(root_, {root, *key}, {int64_t{file.st_size}, changed_ns(file)});
      } else if (name.starts_with(kUnfinished) && now - changed_ns(file) > kLeftAlone) {
        ::unlink(path.c_str());
      }
    });
  });
  const std::lock_guard lock(mutex_);
  // Those written since the folder was read are among those that were known before.
  for (auto at = index_.oldest.rbegin(); at != index_.oldest.rend() && at->first >= now; ++at)
    found.note(root_, at->second, index_.files.at(at->second));
  std::swap(index_, found);
}

void PageFolder::clear() {
  clear(options_.path, &root_);
  make_model_folder();
  look();
}

PageFolder::Stats PageFolder::stats() const {
  const std::lock_guard lock(mutex_);
  return {index_.own_pages, index_.own_bytes, index_.bytes, options_.limit_bytes, damaged_, problem_};
}

std::vector<FolderModel> PageFolder::list(const fs::path& path) {
  if (!fs::is_directory(path)) fail("{}: is no folder", path.string());
  std::vector<FolderModel> models;
  each_model(path, [&](const PageKey& root, const fs::path& folder) {
    FolderModel& model = models.emplace_back();
    model.root = root;
    try {
      model.name = read_file((folder / kModelName).string());
    } catch (const Error&) {
      model.name = "?";
    }
    each_file(folder, [&](const std::string& name, const fs::path&, const struct stat& file) {
      if (!PageKey::from_hex(name)) return;
      ++model.pages;
      model.bytes += file.st_size;
      model.used_ns = std::max(model.used_ns, changed_ns(file));
    });
  });
  std::ranges::sort(models, std::greater<>(), &FolderModel::used_ns);
  return models;
}

void PageFolder::clear(const fs::path& path, const PageKey* root) {
  each_model(path, [&](const PageKey& model, const fs::path& folder) {
    if (root != nullptr && *root != model) return;
    each_file(folder, [&](const std::string& name, const fs::path& file, const struct stat&) {
      if (PageKey::from_hex(name) || name.starts_with(kUnfinished) || name == kModelName)
        ::unlink(file.c_str());
    });
    ::rmdir(folder.c_str());
  });
}

}  // namespace sluice::store
