// The models of a server: one that is there, or several that come when a request names them. Where they come
// from is the assembler's business.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/service.h"

namespace sluice::server {

/// One of them as lists show it.
struct ModelState {
  enum class Kind : uint8_t { Unloaded, Loading, Loaded, Unloading, Failed };
  std::string id;
  Kind kind = Kind::Unloaded;
  double progress = 0;                     ///< of loading, up to 1
  int64_t bytes = 0;                       ///< of its files; 0: not known
  std::string problem;                     ///< of Failed
  std::shared_ptr<const Service> service;  ///< of Loaded; it stays loaded while somebody has this
};

class ModelSet {
 public:
  using Taken = std::function<void(std::shared_ptr<const Service>, std::optional<ApiError>)>;

  virtual ~ModelSet() = default;
  virtual std::vector<ModelState> list() = 0;
  /// Whether a request's name chooses one; otherwise there is one, whatever it is called.
  virtual bool has_several() const = 0;
  /// Calls back once, on any thread, with the model that this name means, as soon as it is there, or with why
  /// it is not. Empty: the one that was used last, or the first.
  virtual void take(const std::string& name, Taken taken) = 0;
  /// The one that was used last and is there; null: there is none.
  virtual std::shared_ptr<const Service> latest() = 0;
  /// Takes the model of this name out of memory, once its answers have ended; nothing happens to one that is
  /// not there. Why that cannot be, or nothing.
  virtual std::optional<ApiError> unload(const std::string& name) = 0;
};

/// One model, whatever a client calls it.
class OneModel : public ModelSet {
 public:
  /// `service` outlives it.
  explicit OneModel(const Service& service) : service_(std::shared_ptr<const void>(), &service) {}
  bool has_several() const override { return false; }
  std::vector<ModelState> list() override {
    return {{service_->model_id, ModelState::Kind::Loaded, 1, service_->model_bytes, "", service_}};
  }
  void take(const std::string&, Taken taken) override { taken(service_, {}); }
  std::shared_ptr<const Service> latest() override { return service_; }
  std::optional<ApiError> unload(const std::string&) override {
    return ApiError(400, "this server has one model, which stays for as long as it runs", "model");
  }

 private:
  std::shared_ptr<const Service> service_;
};

}  // namespace sluice::server
