// A model loaded for many requests at once: what sluice serve serves.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/cli11.h"
#include "cli/generation.h"
#include "cli/kv_events.h"
#include "cli/page_cache.h"
#include "engine/engine.h"
#include "engine/load_plan.h"
#include "server/service.h"

namespace sluice::cli {

struct ServingOptions : GenerationOptions {
  int parallel = 32;         ///< sequences at once
  int64_t rows = 0;          ///< a step at most; 0: by the backend
  int64_t cache_tokens = 0;  ///< of all sequences and cached prefixes; 0: several contexts if they fit
  double max_itl_ms = 0;     ///< 0: by the backend
  int64_t max_waiting = 1024;
  int64_t thinking_budget = -1;  ///< tokens of reasoning an answer; -1: no limit
  bool trust_user_tokens = false;
  bool batch_invariant = false;     ///< the same text whatever else runs
  PageCacheOptions pages;           ///< where they go beyond the device
  events::PublisherOptions events;  ///< to whom it is told what is cached
  std::string alias;                ///< the model's name for clients; empty: the file's
};

/// Rows a step: as many as are wanted, on a CPU more than prefill_rows() has only of a deep prompt alone; or,
/// with 0, as are a good deal of the backend's speed; in any case one for each of so many answers.
PromptRows serving_rows(const model::Spec& spec, const program::Backend& backend, int64_t wanted,
                        int64_t parallel);

/// Seconds of a long step: EngineOptions::long_step_seconds. No limit where rows are what is wanted.
double serving_step_seconds(int64_t wanted_rows);

/// Milliseconds between two tokens while a prompt is read: what is wanted, or, with 0, what suits the
/// backend.
double serving_itl_ms(const program::Backend& backend, double wanted);

/// Stays where it is: its parts point at each other.
class ServingModel {
 public:
  /// Throws Error when the file or an option makes no sense, or there is too little memory.
  /// `progress`: of loading; empty: a bar on a terminal. `whole`: what is less than the model's whole
  /// context, or the one that was asked for, is too little memory.
  ServingModel(const CLI::App& command, const ServingOptions& options, program::Progress progress = {},
               bool whole = false);
  ServingModel(const ServingModel&) = delete;
  ServingModel& operator=(const ServingModel&) = delete;

  engine::Engine& engine() { return *engine_; }
  const server::Service& service() const { return *service_; }
  /// Lines for a user: model, context, memory.
  std::string description() const;

 private:
  OpenedModel model_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> chat_;
  std::string chat_problem_;
  std::unique_ptr<program::Backend> backend_;
  engine::LoadPlan plan_;  ///< for the whole cache
  DraftingModel executables_;
  std::unique_ptr<store::PageStore> store_;    ///< null: pages are on the device alone
  std::unique_ptr<events::Publisher> events_;  ///< null: nobody is told what is cached
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<server::Service> service_;
};

}  // namespace sluice::cli
