#include "server/said_calls.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {
namespace {

/// The value with the keys of all its objects in the order of their names; nothing: an object has too many,
/// or one twice.
std::optional<Json> sorted(const Json& value, size_t most_keys) {
  if (!value.is_structured()) return value;
  if (value.size() > most_keys && value.is_object()) return std::nullopt;
  Json out = value.is_array() ? Json::array() : Json::object();
  std::vector<Json::const_iterator> parts;
  for (auto part = value.begin(); part != value.end(); ++part) parts.push_back(part);
  if (value.is_object()) std::ranges::sort(parts, {}, [](const auto& part) { return part.key(); });
  for (const auto& part : parts) {
    std::optional<Json> inner = sorted(*part, most_keys);
    if (!inner) return std::nullopt;
    if (value.is_array()) {
      out.push_back(std::move(*inner));
    } else if (!out.emplace(part.key(), std::move(*inner)).second) {
      return std::nullopt;
    }
  }
  return out;
}

/// The object that a text is, if it is one.
std::optional<Json> object_of(const std::string& text, size_t longest) {
  if (text.size() > longest || !text::is_json(text)) return std::nullopt;
  Json parsed = text::parse_exact(text);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

size_t hash_of(uint64_t group, const std::string& name, const std::string& sorted) {
  const std::hash<std::string_view> hash;
  return (hash(sorted) * 31 + hash(name)) * 31 + group;
}

}  // namespace

void SaidCalls::keep(uint64_t group, const std::string& name, const std::string& arguments) {
  const std::optional<Json> object = object_of(arguments, kLongest);
  const std::optional<Json> in_order = object ? sorted(*object, kMostKeys) : std::nullopt;
  if (!in_order) return;
  Said said{0, group, name, text::dump_exact(*in_order), arguments};
  said.hash = hash_of(group, name, said.sorted);
  const std::lock_guard lock(mutex_);
  const auto drop = [this](std::list<Said>::iterator one) {
    bytes_ -= one->bytes();
    by_hash_.erase(one->hash);
    said_.erase(one);
  };
  if (const auto before = by_hash_.find(said.hash); before != by_hash_.end()) drop(before->second);
  bytes_ += said.bytes();
  said_.push_front(std::move(said));
  by_hash_[said_.front().hash] = said_.begin();
  while (said_.size() > kMostCalls || bytes_ > kMostBytes) drop(std::prev(said_.end()));
}

std::optional<std::string> SaidCalls::find(uint64_t group, const std::string& name,
                                           const std::string& sorted) {
  const std::lock_guard lock(mutex_);
  const auto found = by_hash_.find(hash_of(group, name, sorted));
  if (found == by_hash_.end()) return std::nullopt;
  const Said& said = *found->second;
  if (said.group != group || said.name != name || said.sorted != sorted) return std::nullopt;
  said_.splice(said_.begin(), said_, found->second);
  return said_.front().arguments;
}

void SaidCalls::restore_call(uint64_t group, Json& function) {
  const auto name = function.find("name"), arguments = function.find("arguments");
  if (name == function.end() || arguments == function.end() || !name->is_string()) return;
  if (!arguments->is_object() && !arguments->is_string()) return;
  const std::string text =
      arguments->is_string() ? arguments->get<std::string>() : text::dump_exact(*arguments);
  const std::optional<Json> given = object_of(text, kLongest);
  const std::optional<Json> in_order = given ? sorted(*given, kMostKeys) : std::nullopt;
  if (!in_order) return;
  const auto said = find(group, name->get_ref<const std::string&>(), text::dump_exact(*in_order));
  if (!said) return;
  Json as_said = text::parse_exact(*said);
  if (text::dump_exact(as_said) == text::dump_exact(*given)) return;
  *arguments = arguments->is_string() ? Json(*said) : std::move(as_said);
}

void SaidCalls::restore(uint64_t group, Json& messages) {
  {
    const std::lock_guard lock(mutex_);
    if (said_.empty()) return;
  }
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      const auto function = call.find("function");
      if (function != call.end() && function->is_object()) restore_call(group, *function);
    }
  }
}

}  // namespace sluice::server
