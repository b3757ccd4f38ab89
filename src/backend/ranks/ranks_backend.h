// The ranks backend: a model over several processes, each of which runs a part of every op, or some of the
// layers, by a backend of its own (program/places.h). Rank 0's has the engine, which sees one device; the
// others follow its steps. Knows no device: what it asks of their backends is that they run a step part by
// part (Facts::parts), or exchange by themselves.
#pragma once

#include <memory>
#include <vector>

#include "backend/ranks/channel.h"
#include "backend/ranks/messages.h"
#include "program/backend.h"

namespace sluice::backend {

/// Of rank 0. Programs are cut into as many places as there are ranks. alike: by rank, a backend that tells
/// of that rank's memory as its own would, where they differ; empty: all ranks' are as `inner`.
std::unique_ptr<program::Backend> make_ranks_backend(
    std::shared_ptr<program::Backend> inner, std::shared_ptr<Channel> channel, Together together = {},
    std::vector<std::shared_ptr<program::Backend>> alike = {});

/// Of every other rank: does what rank 0's backend asks of it, until that ends. Throws Error when a rank is
/// gone, or this one cannot go on; the others know it then.
void follow(Channel& channel, program::Backend& inner, const program::Source& source, Together together = {});

}  // namespace sluice::backend
