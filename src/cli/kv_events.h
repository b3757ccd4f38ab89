// Telling routers what is cached here: flags of serve, and the publisher that they ask for.
#pragma once

#include <memory>
#include <string>

#include "cli/cli11.h"
#include "events/publisher.h"

namespace sluice::cli {

/// Adds --kv-events and what belongs to it.
void add_kv_events_options(CLI::App& command, events::PublisherOptions& options);

/// The publisher that is asked for; null: none is. Throws Error when an address is wrong or taken.
std::unique_ptr<events::Publisher> make_publisher(const events::PublisherOptions& options);

}  // namespace sluice::cli
