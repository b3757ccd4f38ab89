#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "hub/sha256.h"

namespace sluice::hub {
namespace {

constexpr int kFruitlessTries = 5;  ///< in a row that brought nothing
constexpr int kMostTries = 1000;    ///< of a file
constexpr double kLongestWait = 60;

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

/// "bytes 100-199/200" begins at 100 and is of 200.
struct Range {
  int64_t first = -1, total = -1;
};

Range range_of(std::string_view text) {
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with("bytes ") || dash == std::string_view::npos || slash == std::string_view::npos ||
      dash < 6)
    return {};
  return {number(text.substr(6, dash - 6)).value_or(-1), number(text.substr(slash + 1)).value_or(-1)};
}

/// The file that grows, with the hash of what it holds.
class Growing {
 public:
  Growing(const std::filesystem::path& path, int64_t size) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) lost();
    const off_t there = ::lseek(fd_, 0, SEEK_END);
    if (there > size) {
      restart();
      return;
    }
    std::vector<char> block(1 << 20);
    while (bytes_ < there) {
      const ssize_t got = ::pread(fd_, block.data(), block.size(), bytes_);
      if (got <= 0) break;  // what cannot be read is fetched
      hash_.add({block.data(), static_cast<size_t>(got)});
      bytes_ += got;
    }
    found_ = bytes_;
    if (::ftruncate(fd_, bytes_) != 0) lost();
  }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  ~Growing() { ::close(fd_); }

  int64_t bytes() const { return bytes_; }
  /// Whether an earlier run wrote some of it.
  bool has_found() const { return found_ > 0; }

  void append(std::string_view data) {
    hash_.add(data);
    while (!data.empty()) {
      const ssize_t written = ::pwrite(fd_, data.data(), data.size(), bytes_);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) lost();
      bytes_ += written;
      data.remove_prefix(static_cast<size_t>(written));
    }
  }

  void restart() {
    if (::ftruncate(fd_, 0) != 0) lost();
    bytes_ = found_ = 0;
    hash_.restart();
  }

  std::string finish() {
    if (::fdatasync(fd_) != 0) lost();
    return hash_.finish();
  }

 private:
  [[noreturn]] void lost() const { fail("{}: {}", path_.string(), std::strerror(errno)); }

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t bytes_ = 0, found_ = 0;
  Sha256 hash_;
};

/// One request for what is still missing.
Answer fetch(Http& http, const std::string& url, const File& file, Growing& growing, const Reports& reports) {
  Request request;
  request.url = url;
  request.from = growing.bytes();
  request.most_bytes = std::numeric_limits<int64_t>::max();  // looked at below
  request.begin = [&](const Answer& answer) {
    if (answer.status == 206) {
      const Range range = range_of(answer.header("content-range"));
      if (range.first != growing.bytes() || range.total != file.size)
        fail("{}: the hub sends other bytes ({}) than it was asked for", file.path,
             answer.header("content-range"));
      return;
    }
    const auto length = number(answer.header("content-length"));
    if (length && *length != file.size)
      fail("{}: the hub sends {} bytes, and its list says {}", file.path, *length, file.size);
    if (growing.bytes() > 0) growing.restart();  // it knows no ranges
  };
  request.body = [&](std::string_view bytes) {
    if (growing.bytes() + static_cast<int64_t>(bytes.size()) > file.size)
      fail("{}: the hub sends more than the {} bytes that its list says", file.path, file.size);
    growing.append(bytes);
    if (reports.bytes) reports.bytes(growing.bytes());
  };
  return http.send(request);
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// All bytes, with as many requests as it takes.
void fetch_all(Http& http, const Settings& settings, const Repository& repository, const std::string& url,
               const File& file, Growing& growing, const Reports& reports) {
  int fruitless = 0;
  for (int tries = 0; growing.bytes() < file.size; ++tries) {
    const int64_t before = growing.bytes();
    std::string trouble = "the connection was cut";
    double wait = std::exp2(fruitless) * 0.25;
    try {
      const Answer answer = fetch(http, url, file, growing, reports);
      if (answer.status == 416 && growing.bytes() > 0) {
        growing.restart();
      } else if (!answer.good()) {
        wait = seconds_to_wait(answer, fruitless);
        if (wait < 0) fail_with(answer, settings, repository, file.path);
        trouble = fmt::format("the hub answers with status {}", answer.status);
      }
    } catch (const NetworkError& error) {
      trouble = error.what();
    }
    if (growing.bytes() == file.size) break;
    fruitless = growing.bytes() > before ? 0 : fruitless + 1;
    if (fruitless == kFruitlessTries || tries == kMostTries)
      fail("{}: {}; {} of {} are there, and the same command goes on from them", file.path, trouble,
           size_text(growing.bytes()), size_text(file.size));
    if (fruitless == 0) continue;
    if (reports.tell) reports.tell(fmt::format("{}: {}; trying again in {:.2g} s", file.path, trouble, wait));
    sleep_for(wait);
  }
}

}  // namespace

void fail_with(const Answer& answer, const Settings& settings, const Repository& repository,
               const std::string& subject) {
  const std::string code = answer.header("x-error-code"), name = repository.text();
  const std::string page = settings.endpoint + "/" + name;
  const bool token = !settings.token.empty();
  if (code == "GatedRepo" || answer.status == 403) {
    if (token)
      fail("{}: is gated, and this token has no access; its conditions are to be accepted at {}", name, page);
    fail("{}: is gated; accept its conditions at {} and give a token (HF_TOKEN)", name, page);
  }
  if (code == "EntryNotFound") fail("{}: has no file {}", name, subject);
  if (code == "RevisionNotFound") fail("{}: has no revision main", name);
  if (answer.status == 401 && token && code != "RepoNotFound")
    fail("{}: the hub does not accept this token (HF_TOKEN)", name);
  if (code == "RepoNotFound" || answer.status == 401 || answer.status == 404) {
    fail("{}: no such repository at {}{}", name, settings.endpoint,
         token ? ", or this token may not see it" : ", or a private one that wants a token (HF_TOKEN)");
  }
  if (answer.status == 429)
    fail("{}: the hub answers no more requests for now (status 429); try again later", name);
  fail("{}: the hub answers with status {} for {}", name, answer.status, subject);
}

double seconds_to_wait(const Answer& answer, int tries) {
  if (answer.status != 429 && (answer.status < 500 || answer.status > 599)) return -1;
  const auto asked = number(answer.header("retry-after"));
  const double wait = asked ? static_cast<double>(*asked) : 0.5 * std::exp2(tries);
  return std::min(wait, kLongestWait);
}

void download(Http& http, const Settings& settings, const Repository& repository, const std::string& url,
              const File& file, const std::filesystem::path& incomplete, const Reports& reports) {
  Growing growing(incomplete, file.size);
  if (reports.bytes) reports.bytes(growing.bytes());
  for (;;) {
    const bool resumed = growing.has_found();
    fetch_all(http, settings, repository, url, file, growing, reports);
    if (file.sha256.empty() || growing.finish() == file.sha256) return;
    growing.restart();
    if (!resumed)
      fail("{}: what the hub sent does not have the sha256 {} that its list says", file.path, file.sha256);
    if (reports.tell)
      reports.tell(fmt::format("{}: what an earlier download left is damaged; beginning anew", file.path));
  }
}

}  // namespace sluice::hub
