#include "events/block_event.h"

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace sluice::events {
namespace {

using Json = nlohmann::ordered_json;

/// vLLM's name for the memory that an engine attends from, whatever it is made of.
constexpr const char* kMedium = "GPU";

struct Field {
  const char* name;
  Json value;
};

const char* tag_of(BlockEvent::Kind kind) {
  switch (kind) {
    case BlockEvent::Kind::Stored: return "BlockStored";
    case BlockEvent::Kind::Removed: return "BlockRemoved";
    case BlockEvent::Kind::Cleared: return "AllBlocksCleared";
  }
  CHECK(false, "kind {}", static_cast<int>(kind));
  return "";
}

std::vector<Field> fields_of(const BlockEvent& event, int64_t block_tokens) {
  switch (event.kind) {
    case BlockEvent::Kind::Stored:
      return {
          {"block_hashes", event.hashes}, {"parent_block_hash", event.parent ? Json(*event.parent) : Json()},
          {"token_ids", event.tokens},    {"block_size", block_tokens},
          {"lora_id", nullptr},           {"medium", kMedium},
          {"lora_name", nullptr}};
    case BlockEvent::Kind::Removed: return {{"block_hashes", event.hashes}, {"medium", kMedium}};
    case BlockEvent::Kind::Cleared: return {};
  }
  return {};
}

Json event_json(const BlockEvent& event, int64_t block_tokens, Layout layout) {
  const char* const tag = tag_of(event.kind);
  Json out = layout == Layout::Arrays ? Json::array({tag}) : Json{{"type", tag}};
  for (Field& field : fields_of(event, block_tokens)) {
    if (layout == Layout::Arrays) {
      out.push_back(std::move(field.value));
    } else {
      out[field.name] = std::move(field.value);
    }
  }
  return out;
}

}  // namespace

std::string encode(double seconds, std::span<const BlockEvent> events, int64_t block_tokens, Layout layout) {
  Json list = Json::array();
  for (const BlockEvent& event : events) list.push_back(event_json(event, block_tokens, layout));
  constexpr int kRank = 0;  // of data parallel engines: there is one
  std::string bytes;
  Json::to_msgpack(Json::array({seconds, std::move(list), kRank}), bytes);
  return bytes;
}

}  // namespace sluice::events
