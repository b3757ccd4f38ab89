// Several models for one server: loaded when a request names them, gone again when memory is short or nobody
// has asked for some time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/serving_model.h"
#include "server/model_set.h"

namespace sluice::cli {

/// A model that can be loaded.
struct ShelfModel {
  std::string id;    ///< as clients see it
  std::string path;  ///< a file, or a name with kHubScheme
  int64_t bytes = 0;
};

/// "GLM-4.7-Flash-Q4_K_M" of .../GLM-4.7-Flash-Q4_K_M-00001-of-00002.gguf.
std::string model_file_name(const std::string& path);

/// The GGUF models in a folder and in the folders in it, by their files' names; a split model is one. Throws
/// UsageError: there is none.
std::vector<ShelfModel> models_in(const std::string& folder);

class ModelShelf : public server::ModelSet {
 public:
  struct Limits {
    size_t most = 0;          ///< loaded at once; 0: as many as fit into memory
    double idle_seconds = 0;  ///< after which a model goes; 0: never
  };
  /// Makes a loaded model. `whole`: others could make room, so it is to have all of its context. Throws
  /// TooLittleMemory, or another Error.
  using Load =
      std::function<std::unique_ptr<ServingModel>(const ShelfModel&, bool whole, const program::Progress&)>;

  /// `tell` takes lines for whoever runs the server. Throws UsageError: two models have one name.
  ModelShelf(std::vector<ShelfModel> models, Limits limits, Load load,
             std::function<void(const std::string&)> tell);
  ModelShelf(const ModelShelf&) = delete;
  ModelShelf& operator=(const ModelShelf&) = delete;
  /// Nobody may have a model any more.
  ~ModelShelf() override;

  bool has_several() const override { return true; }
  std::vector<server::ModelState> list() override;
  void take(const std::string& name, Taken taken) override;
  std::shared_ptr<const server::Service> latest() override;
  std::optional<server::ApiError> unload(const std::string& name) override;

  /// Requests that run, and that wait.
  int64_t at_work();
  /// Loads no more, and stops the engines of what is loaded. What waits is told so.
  void stop();

 private:
  using Kind = server::ModelState::Kind;
  struct Slot {
    ShelfModel model;
    Kind kind = Kind::Unloaded;
    std::unique_ptr<ServingModel> loaded = {};
    std::atomic<double> progress{0};
    int64_t leases = 0;
    int64_t asked_ns = 0;  ///< when a request last named it: its place among the others
    int64_t used_ns = 0;   ///< when the last one was done with it
    bool leaving = false;  ///< is to go: who asks for it waits until it comes again
    std::string problem = {};
    std::vector<Taken> waiting = {};
  };

  /// The model, kept there as long as somebody has this. `use`: the model has been in use until then.
  std::shared_ptr<const server::Service> lease(Slot& slot, bool use);
  Slot* find(const std::string& name);
  void run();
  void load(Slot& slot, std::unique_lock<std::mutex>& lock);
  bool make_room(const Slot& slot, std::unique_lock<std::mutex>& lock);
  void unload(Slot& slot, std::unique_lock<std::mutex>& lock);
  bool unload_some(std::unique_lock<std::mutex>& lock);
  size_t loaded() const;

  const Limits limits_;
  const Load load_;
  const std::function<void(const std::string&)> tell_;
  std::mutex mutex_;  // over what follows
  std::condition_variable changed_;
  std::list<Slot> slots_;  ///< they stay where they are
  bool stopping_ = false;
  std::thread thread_;  ///< loads and unloads, one model after the other
};

}  // namespace sluice::cli
