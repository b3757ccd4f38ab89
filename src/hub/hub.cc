#include "hub/hub.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "hub/download.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kMostListBytes = 16 << 20;
constexpr size_t kMostFiles = 20'000;
constexpr int kMostDepth = 16;
constexpr int kTries = 4;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 46;

/// JSON of a stranger.
Json parse(const std::string& text, const std::string& subject) {
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) fail("{}: the hub's list is nested too deeply", subject);
    return true;
  };
  Json json = Json::parse(text, shallow, false);
  if (!json.is_object()) fail("{}: the hub's list is no JSON object", subject);
  return json;
}

std::string string_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// -1: it says none, or one that no file has. So sizes of all files of a list add up.
int64_t size_in(const Json& object) {
  const auto found = object.find("size");
  const bool known =
      found != object.end() && found->is_number_unsigned() && found->get<uint64_t>() <= kMostFileBytes;
  return known ? found->get<int64_t>() : -1;
}

File file_of(const Json& sibling, const std::string& subject) {
  if (!sibling.is_object()) fail("{}: the hub's list has a file that is no object", subject);
  File file{string_in(sibling, "rfilename"), size_in(sibling), ""};
  if (!is_safe_path(file.path))
    fail("{}: the hub's list has a file named '{}', which is no path in a repository", subject, file.path);
  const auto lfs = sibling.find("lfs");
  if (lfs == sibling.end() || !lfs->is_object()) return file;
  file.sha256 = string_in(*lfs, "sha256");
  if (file.sha256.size() != 64 || !is_hex(file.sha256, 64))
    fail("{}: the hub's list has no sha256 of {}", subject, file.path);
  if (const int64_t size = size_in(*lfs); size >= 0) file.size = size;
  return file;
}

std::string resolve_url(const Settings& settings, const Repository& repository, const std::string& commit,
                        const std::string& path) {
  return fmt::format("{}/{}/resolve/{}/{}", settings.endpoint, repository.text(), commit, escaped_path(path));
}

/// An answer of the hub itself, with patience for one that is busy.
template <typename Ask>
Answer patiently(const Listener& listener, const std::string& subject, Ask ask) {
  for (int tries = 0;; ++tries) {
    Answer answer = ask();
    const double wait = seconds_to_wait(answer, tries);
    if (wait < 0 || tries + 1 == kTries) return answer;
    if (listener.tell)
      listener.tell(fmt::format("{}: the hub answers with status {}; trying again in {:.2g} s", subject,
                                answer.status, wait));
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
}

/// What the content of a file is called in the cache: its sha256, or what the hub tells of a small one.
std::string hash_of(Http& http, const Settings& settings, const Repository& repository,
                    const std::string& commit, File& file, const Listener& listener) {
  if (!file.sha256.empty()) return file.sha256;
  Request request;
  request.url = resolve_url(settings, repository, commit, file.path);
  request.head = true;
  const Answer answer = patiently(listener, repository.text(), [&] { return http.send(request); });
  if (!answer.good()) fail_with(answer, settings, repository, file.path);
  std::string tag = answer.header("etag");
  if (tag.starts_with("W/")) tag.erase(0, 2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') tag = tag.substr(1, tag.size() - 2);
  if (!is_hex(tag, 32)) fail("{}: the hub's tag of {} is no hash", repository.text(), file.path);
  return tag;
}

void check_space(const fs::path& folder, int64_t needed) {
  struct statvfs info {};
  if (needed <= 0 || ::statvfs(folder.c_str(), &info) != 0) return;
  const auto available = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (needed > available)
    fail("{}: {} are needed and {} are free; HF_HUB_CACHE names another folder, sluice rm makes room",
         folder.string(), size_text(needed), size_text(available));
}

int64_t bytes_there(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

fs::path incomplete_of(const fs::path& blob) { return blob.string() + ".incomplete"; }

/// Blobs of one model on their way into the cache.
class Pull {
 public:
  Pull(Http& http, const Settings& settings, Repository repository, std::string commit, const Model& model,
       const Listener& listener)
      : http_(http),
        settings_(settings),
        cache_(settings.cache),
        repository_(std::move(repository)),
        commit_(std::move(commit)),
        files_(model.files),
        listener_(listener) {
    progress_.name = repository_.text() + ":" + model.quant;
    for (File& file : files_) {
      hashes_.push_back(hash_of(http_, settings_, repository_, commit_, file, listener_));
      if (file.size < 0) fail("{}: the hub's list has no size of {}", repository_.text(), file.path);
      progress_.total_bytes += file.size;
    }
  }

  fs::path run() {
    std::error_code error;
    const fs::path blobs = cache_.blob(repository_, "x").parent_path();
    fs::create_directories(blobs, error);
    if (error) fail("{}: {}", blobs.string(), error.message());
    int64_t missing = 0;
    for (size_t i = 0; i < files_.size(); ++i) {
      const fs::path blob = cache_.blob(repository_, hashes_[i]);
      if (!is_there(i)) missing += files_[i].size - bytes_there(incomplete_of(blob));
    }
    check_space(blobs, missing);
    for (size_t i = 0; i < files_.size(); ++i) fetch(i);
    std::vector<fs::path> links;
    for (size_t i = 0; i < files_.size(); ++i)
      links.push_back(cache_.link(repository_, commit_, files_[i], hashes_[i]));
    cache_.set_main(repository_, commit_);
    return links.front();
  }

 private:
  bool is_there(size_t i) const {
    std::error_code error;
    const fs::path blob = cache_.blob(repository_, hashes_[i]);
    return fs::is_regular_file(blob, error) && bytes_there(blob) == files_[i].size;
  }

  void fetch(size_t i) {
    const File& file = files_[i];
    if (!is_there(i)) {
      const BlobLock lock(cache_.lock(repository_, hashes_[i]), [&] {
        if (listener_.tell) listener_.tell(file.path + ": another process fetches it; waiting");
      });
      if (!is_there(i)) {  // nobody else has fetched it meanwhile
        const fs::path blob = cache_.blob(repository_, hashes_[i]), incomplete = incomplete_of(blob);
        const int64_t before = progress_.done_bytes;
        download(http_, settings_, repository_, resolve_url(settings_, repository_, commit_, file.path), file,
                 incomplete, {[&](int64_t bytes) { report(before + bytes); }, listener_.tell});
        progress_.done_bytes = before;
        std::error_code error;
        fs::rename(incomplete, blob, error);
        if (error) fail("{}: {}", blob.string(), error.message());
      }
    }
    report(progress_.done_bytes + file.size);
  }

  void report(int64_t done) {
    progress_.done_bytes = done;
    if (listener_.progress) listener_.progress(progress_);
  }

  Http& http_;
  const Settings& settings_;
  Cache cache_;
  Repository repository_;
  std::string commit_;
  std::vector<File> files_;
  std::vector<std::string> hashes_;
  const Listener& listener_;
  Progress progress_;
};

}  // namespace

Revision revision_of(Http& http, const Settings& settings, const Repository& repository,
                     const Listener& listener) {
  const std::string subject = repository.text();
  const std::string url =
      fmt::format("{}/api/models/{}/revision/main?blobs=true", settings.endpoint, subject);
  std::string body;
  const Answer answer = patiently(listener, subject, [&] { return http.get(url, kMostListBytes, body); });
  if (!answer.good()) fail_with(answer, settings, repository, "its list of files");
  const Json json = parse(body, subject);
  Revision revision{string_in(json, "sha"), {}};
  if (!is_hex(revision.commit, 40)) fail("{}: the hub's list has no commit", subject);
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array()) fail("{}: the hub's list has no files", subject);
  if (siblings->size() > kMostFiles) fail("{}: the hub's list has more than {} files", subject, kMostFiles);
  for (const Json& sibling : *siblings) revision.files.push_back(file_of(sibling, subject));
  return revision;
}

fs::path pull(const Settings& settings, const ModelName& name, const Taste& taste, const Listener& listener) {
  if (settings.offline)
    fail("{}: is not in {}, and HF_HUB_OFFLINE forbids to ask for it", name.text(), settings.cache.string());
  try {
    Http http(settings);
    const Revision revision = revision_of(http, settings, name.repository, listener);
    const std::vector<Model> models = models_of(revision.files);
    return Pull(http, settings, name.repository, revision.commit, choose(models, name, taste), listener)
        .run();
  } catch (const NetworkError& error) {
    fail("{}: {} cannot be reached ({}); without a network, what `sluice list` shows can be used",
         name.text(), settings.endpoint, error.what());
  }
}

fs::path find_or_pull(const Settings& settings, const ModelName& name, const Taste& taste,
                      const Listener& listener) {
  if (const auto cached = Cache(settings.cache).find(name, taste)) return cached->path;
  return pull(settings, name, taste, listener);
}

}  // namespace sluice::hub
