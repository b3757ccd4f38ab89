// A server on a free port, in this process, with the bundled model.
#pragma once

#include <memory>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "server/parrot.h"

namespace sluice::test {

/// A server with the bundled model on the CPU backend.
class BundledServer {
 public:
  explicit BundledServer(int32_t sequences = 16, server::ServerOptions options = quick_server())
      : model_(model::Model::load(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf")),
        tokenizer_(model::load_tokenizer(model_.file)),
        chat_(model_.file.string("tokenizer.chat_template").value(), "", "", text::ControlTokens(tokenizer_)),
        backend_(backend::make_cpu_backend({.threads = 2})) {
    engine::EngineOptions engine;
    engine.context = 2048;
    engine.max_sequences = sequences;
    engine.pages = engine::KvPool::pages_for(2048 * 4);
    engine.max_rows = 256;
    executable_ =
        backend_->compile(model_.program, model_.weights, {engine.max_rows, sequences, engine.pages});
    engine_ = std::make_unique<engine::Engine>(*executable_, tokenizer_, engine);
    service_.emplace(server::Service{*engine_, tokenizer_});
    service_->chat = &chat_;
    service_->constraints = std::make_shared<text::ConstraintVocabulary>(tokenizer_);
    service_->model_id = "Fairy Tales";
    service_->trained_context = 2048;
    server.emplace(std::move(options));
    server->ready(*service_);
  }
  ~BundledServer() {
    engine_->stop();
    server.reset();
  }
  BundledServer(const BundledServer&) = delete;
  BundledServer& operator=(const BundledServer&) = delete;

  uint16_t port() const { return server->port(); }
  engine::Engine& engine() { return *engine_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

  std::optional<server::Server> server;

 private:
  model::Model model_;
  text::Tokenizer tokenizer_;
  text::ChatTemplate chat_;
  std::unique_ptr<program::Backend> backend_;
  std::unique_ptr<program::Executable> executable_;
  std::unique_ptr<engine::Engine> engine_;
  std::optional<server::Service> service_;
};

}  // namespace sluice::test
