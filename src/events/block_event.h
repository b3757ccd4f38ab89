// What routers in front of several servers are told of a cache: which blocks of tokens entered it and which
// left, so that a prompt goes where most of it is. The messages are those of vLLM (msgpack), which llm-d's
// and Dynamo's routers read. Knows numbers alone, neither engine nor sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sluice::events {

struct BlockEvent {
  enum class Kind : uint8_t {
    Stored,   ///< blocks of a chain, each behind the one before
    Removed,  ///< in any order
    Cleared,  ///< the cache holds nothing any more
  };
  Kind kind = Kind::Stored;
  std::vector<uint64_t> hashes = {};    ///< of Stored and Removed, by block
  std::optional<uint64_t> parent = {};  ///< of Stored: before the first block; none: a prompt begins there
  std::vector<int32_t> tokens = {};     ///< of Stored: of all its blocks
  friend bool operator==(const BlockEvent&, const BlockEvent&) = default;
};

/// Takes events, in their order.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Must be quick: the engine's thread calls it between its steps.
  virtual void take(std::vector<BlockEvent> events) = 0;
};

/// How an event is written: as an array of its fields' values behind its name, which all routers read, or as
/// a map, which vLLM writes since version 0.24.
enum class Layout : uint8_t { Arrays, Maps };

/// A batch of events as msgpack. `seconds`: since 1970.
std::string encode(double seconds, std::span<const BlockEvent> events, int64_t block_tokens, Layout layout);

}  // namespace sluice::events
