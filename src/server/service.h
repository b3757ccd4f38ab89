// What the endpoints work with: a loaded model, and the engine that runs it. Made by whoever assembles the
// program; the endpoints change nothing in it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/constraint_cache.h"
#include "server/said_calls.h"
#include "text/chat.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

namespace sluice::server {

struct Service {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat = nullptr;  ///< null: the model has none
  std::shared_ptr<const text::ConstraintVocabulary> constraints;
  std::shared_ptr<ConstraintCache> constraint_cache = std::make_shared<ConstraintCache>();
  std::shared_ptr<SaidCalls> said_calls = std::make_shared<SaidCalls>();
  engine::SamplingParams sampling;  ///< where a request says nothing; its seed is not used

  int64_t thinking_budget = -1;  ///< tokens of reasoning where a request says nothing; -1: no limit

  std::function<void(const std::string&)>
      log;  ///< takes lines for whoever runs the server; null: nobody does

  std::string model_id;  ///< as clients see it
  std::string model_path;
  std::string chat_template;    ///< its source
  std::string bos, eos;         ///< texts of these tokens
  int64_t trained_context = 0;  ///< tokens; the engine may have less
  int64_t model_bytes = 0;
  std::string architecture, quantization;  ///< "deepseek2", "Q4_K"
  int64_t parameters = 0;
  std::string backend;
};

}  // namespace sluice::server
