#include "cli/model_shelf.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "cli/memory_view.h"
#include "hub/choice.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string model_file_name(const std::string& path) {
  std::string stem = fs::path(path).stem().string();
  const size_t part = stem.rfind("-of-");
  if (part != std::string::npos && part >= 6 && stem.size() == part + 9) stem.erase(part - 6);
  return stem;
}

std::vector<ShelfModel> models_in(const std::string& folder) {
  std::error_code error;
  std::vector<hub::File> files;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
  if (error) throw UsageError(fmt::format("--models-dir {}: {}", folder, error.message()));
  for (; !error && entry != end; entry.increment(error)) {
    if (entry.depth() > 0) entry.disable_recursion_pending();
    std::error_code unreadable;
    if (!entry->is_regular_file(unreadable) || unreadable) continue;
    files.push_back({entry->path().string(), static_cast<int64_t>(entry->file_size(unreadable)), ""});
  }
  std::vector<ShelfModel> models;
  for (const hub::Model& model : hub::models_of(files))
    models.push_back({model_file_name(model.files.front().path), model.files.front().path, model.bytes()});
  std::ranges::sort(models, {}, &ShelfModel::id);
  if (models.empty()) throw UsageError(fmt::format("--models-dir {}: there is no GGUF model in it", folder));
  return models;
}

ModelShelf::ModelShelf(std::vector<ShelfModel> models, Limits limits, Load load,
                       std::function<void(const std::string&)> tell)
    : limits_(limits), load_(std::move(load)), tell_(std::move(tell)) {
  std::set<std::string> names;
  for (ShelfModel& model : models) {
    if (!names.insert(model.id).second)
      throw UsageError(fmt::format("{}: two models have this name; --alias gives others", model.id));
    slots_.emplace_back();
    slots_.back().model = std::move(model);
  }
  thread_ = std::thread([this] { run(); });
}

ModelShelf::~ModelShelf() {
  stop();
  if (thread_.joinable()) thread_.join();
}

std::vector<server::ModelState> ModelShelf::list() {
  const std::lock_guard lock(mutex_);
  std::vector<server::ModelState> out;
  for (Slot& slot : slots_) {
    const bool there = slot.kind == Kind::Loaded && !slot.leaving;
    const Kind kind = slot.leaving ? Kind::Unloading : slot.kind;
    out.push_back({slot.model.id, kind, slot.progress, slot.model.bytes, slot.problem,
                   there ? lease(slot, false) : nullptr});
  }
  return out;
}

void ModelShelf::take(const std::string& name, Taken taken) {
  std::unique_lock lock(mutex_);
  Slot* slot = find(name);
  std::shared_ptr<const server::Service> there;
  std::optional<server::ApiError> error;
  if (stopping_) {
    error.emplace(503, "the server is stopping");
  } else if (slot == nullptr) {
    std::string known;
    for (const Slot& one : slots_) known += (known.empty() ? "" : ", ") + one.model.id;
    error.emplace(404, fmt::format("model: {} is none of this server's: {}", name, known), "model",
                  "model_not_found");
  } else if (slot->kind == Kind::Loaded && !slot->leaving) {
    slot->asked_ns = now_ns();
    there = lease(*slot, true);
  } else {
    slot->waiting.push_back(std::move(taken));
    changed_.notify_all();
    return;
  }
  lock.unlock();
  taken(std::move(there), std::move(error));
}

std::shared_ptr<const server::Service> ModelShelf::latest() {
  const std::lock_guard lock(mutex_);
  Slot* latest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.kind != Kind::Loaded || slot.leaving) continue;
    if (latest == nullptr || slot.asked_ns > latest->asked_ns) latest = &slot;
  }
  return latest != nullptr ? lease(*latest, false) : nullptr;
}

std::optional<server::ApiError> ModelShelf::unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto slot = std::ranges::find(slots_, name, [](const Slot& one) { return one.model.id; });
  if (slot == slots_.end())
    return server::ApiError(404, fmt::format("{}: no such model", name), "model", "model_not_found");
  if (slot->kind == Kind::Loading)
    return server::ApiError(409, fmt::format("{} is being loaded; it can be unloaded after that", name),
                            "model");
  if (slot->kind == Kind::Failed) slot->kind = Kind::Unloaded;
  slot->leaving = slot->kind == Kind::Loaded;
  changed_.notify_all();
  return {};
}

// No engine is asked or stopped under the lock: its thread may be about to give a model back.
int64_t ModelShelf::at_work() {
  int64_t sum = 0;
  for (const server::ModelState& model : list()) {
    if (!model.service) continue;
    const engine::EngineStats stats = model.service->engine.stats();
    sum += stats.running + stats.waiting;
  }
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) sum += std::ssize(slot.waiting);
  return sum;
}

void ModelShelf::stop() {
  std::vector<Taken> waiting;
  std::vector<ServingModel*> there;  // they stay: from now on nothing is unloaded
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Slot& slot : slots_) {
      std::ranges::move(std::exchange(slot.waiting, {}), std::back_inserter(waiting));
      if (slot.loaded) there.push_back(slot.loaded.get());
    }
    changed_.notify_all();
  }
  for (ServingModel* model : there) model->engine().stop();
  for (const Taken& taken : waiting) taken(nullptr, server::ApiError(503, "the server is stopping"));
}

std::shared_ptr<const server::Service> ModelShelf::lease(Slot& slot, bool use) {
  ++slot.leases;
  return {&slot.loaded->service(), [this, &slot, use](const server::Service*) {
            const std::lock_guard lock(mutex_);
            --slot.leases;
            if (use) slot.used_ns = now_ns();
            changed_.notify_all();
          }};
}

ModelShelf::Slot* ModelShelf::find(const std::string& name) {
  Slot* latest = &slots_.front();
  for (Slot& slot : slots_) {
    if (slot.model.id == name) return &slot;
    if (slot.asked_ns > latest->asked_ns) latest = &slot;
  }
  if (name.empty()) return latest;
  // Ollama's clients put a tag behind a name that has none.
  if (name.ends_with(":latest")) return find(name.substr(0, name.size() - 7));
  return nullptr;
}

size_t ModelShelf::loaded() const {
  return static_cast<size_t>(
      std::ranges::count_if(slots_, [](const Slot& slot) { return slot.loaded != nullptr; }));
}

void ModelShelf::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto wanted = std::ranges::find_if(
        slots_, [](const Slot& slot) { return !slot.waiting.empty() && slot.loaded == nullptr; });
    if (wanted != slots_.end()) {
      load(*wanted, lock);
      continue;
    }
    if (unload_some(lock)) continue;  // somebody may have asked meanwhile
    changed_.wait_for(lock, std::chrono::milliseconds(limits_.idle_seconds > 0 ? 250 : 60'000));
  }
}

/// Takes the model that was used longest ago out of memory, once nobody has it. False: there is none, or the
/// server stops.
bool ModelShelf::make_room(const Slot& slot, std::unique_lock<std::mutex>& lock) {
  Slot* oldest = nullptr;
  for (Slot& other : slots_) {
    if (&other == &slot || other.loaded == nullptr) continue;
    if (oldest == nullptr || other.asked_ns < oldest->asked_ns) oldest = &other;
  }
  if (oldest == nullptr) return false;
  oldest->leaving = true;
  changed_.wait(lock, [&] { return oldest->leases == 0 || stopping_; });
  if (stopping_) return false;
  unload(*oldest, lock);
  return true;
}

void ModelShelf::unload(Slot& slot, std::unique_lock<std::mutex>& lock) {
  slot.kind = Kind::Unloaded;
  slot.leaving = false;
  std::unique_ptr<ServingModel> gone = std::move(slot.loaded);
  lock.unlock();
  gone->engine().stop();
  gone.reset();
  tell_(fmt::format("{} is unloaded", slot.model.id));
  lock.lock();
}

/// Those that are to go, and those that nobody has asked for in a long time. Whether there were any.
bool ModelShelf::unload_some(std::unique_lock<std::mutex>& lock) {
  bool any = false;
  const int64_t before = now_ns() - static_cast<int64_t>(limits_.idle_seconds * 1e9);
  for (Slot& slot : slots_) {
    if (!slot.loaded || slot.leases > 0 || stopping_) continue;
    const bool idle = limits_.idle_seconds > 0 && std::max(slot.used_ns, slot.asked_ns) < before;
    if (!slot.leaving && !idle) continue;
    unload(slot, lock);
    any = true;
  }
  return any;
}

void ModelShelf::load(Slot& slot, std::unique_lock<std::mutex>& lock) {
  slot.kind = Kind::Loading;
  slot.progress = 0;
  slot.problem.clear();
  std::unique_ptr<ServingModel> made;
  std::string problem;
  while (limits_.most > 0 && loaded() >= limits_.most && make_room(slot, lock)) {
  }
  while (!stopping_ && !made && problem.empty()) {
    const bool whole = loaded() > 0;
    lock.unlock();
    bool short_of_memory = false;
    try {
      made = load_(slot.model, whole, [&slot](int64_t done, int64_t total) {
        slot.progress = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
      });
    } catch (const TooLittleMemory& error) {
      short_of_memory = true;
      problem = error.what();
    } catch (const std::bad_alloc&) {
      short_of_memory = true;
      problem = "out of memory";
    } catch (const std::exception& error) {
      problem = error.what();
    }
    lock.lock();
    if (short_of_memory && make_room(slot, lock)) problem.clear();
  }
  slot.loaded = std::move(made);
  slot.kind = slot.loaded ? Kind::Loaded : Kind::Failed;
  slot.problem = problem;
  slot.asked_ns = slot.used_ns = now_ns();
  if (stopping_) {
    if (slot.loaded) slot.loaded->engine().stop();
    problem = "the server is stopping";
  }
  std::vector<Taken> waiting = std::exchange(slot.waiting, {});
  std::vector<std::shared_ptr<const server::Service>> leases(waiting.size());
  const bool there = slot.loaded != nullptr && !stopping_;
  if (there)
    for (auto& one : leases) one = lease(slot, true);
  lock.unlock();
  tell_(there ? fmt::format("{} is loaded", slot.model.id) : fmt::format("{}: {}", slot.model.id, problem));
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (there)
      waiting[i](std::move(leases[i]), {});
    else
      waiting[i](nullptr, server::ApiError(503, fmt::format("{}: {}", slot.model.id, problem)));
  }
  leases.clear();
  lock.lock();
}

}  // namespace sluice::cli
