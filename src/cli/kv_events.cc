#include "cli/kv_events.h"

#include <CLI/CLI.hpp>
#include <map>

#include "program/tensor.h"

namespace sluice::cli {

void add_kv_events_options(CLI::App& command, events::PublisherOptions& options) {
  CLI::Option* const endpoint =
      command
          .add_option(
              "--kv-events", options.endpoint,
              "tell routers over ZeroMQ which blocks of prompts are in the cache, their tokens included: "
              "listens at tcp://*:5557, connects to tcp://router:5557")
          ->type_name("ADDRESS");
  command
      .add_option("--kv-events-topic", options.topic,
                  "the first part of these messages; llm-d expects kv@ADDRESS:PORT@MODEL")
      ->type_name("TEXT")
      ->needs(endpoint);
  command
      .add_option("--kv-events-replay", options.replay,
                  "where a router that missed some may ask for them, as tcp://*:5558")
      ->type_name("ADDRESS")
      ->needs(endpoint);
  command
      .add_option("--kv-events-layout", options.layout,
                  "arrays, which all routers read, or maps, as vLLM writes them since 0.24")
      ->transform(CLI::CheckedTransformer(std::map<std::string, events::Layout>{
          {"arrays", events::Layout::Arrays}, {"maps", events::Layout::Maps}}))
      ->default_str("arrays")
      ->needs(endpoint);
}

std::unique_ptr<events::Publisher> make_publisher(const events::PublisherOptions& options) {
  if (options.endpoint.empty()) return nullptr;
  events::PublisherOptions chosen = options;
  chosen.block_tokens = program::kPageRows;
  return std::make_unique<events::Publisher>(chosen);
}

}  // namespace sluice::cli
