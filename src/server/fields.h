// Reads the JSON of requests: every field by name and type, and nothing that would go unread in silence.
// Knows JSON; what fields mean is its users' business.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/api_error.h"

namespace sluice::server {

/// The value of a body, within limits on depth, values and keys (a client's text must not cost more than a
/// few times its size). Throws ApiError. `take` hears before anything is made of the text how many bytes its
/// values and what requests make of them will take, about, and may throw.
Json parse_json(std::string_view body, const std::function<void(size_t)>& take = {});

/// The fields of one object. A field that is null counts as absent. Every function throws ApiError with the
/// field's path when the value is of the wrong type or out of range.
class Fields {
 public:
  /// `object` outlives it. `path` names it in messages: "messages[3]"; empty: the body itself.
  explicit Fields(const Json& object, std::string path = {});

  /// The value, or null: absent.
  const Json* any(std::string_view name);
  const Json* array(std::string_view name);
  const Json* object(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  /// A string out of a list.
  std::optional<std::string> choice(std::string_view name, std::initializer_list<std::string_view> allowed);
  /// A string, or an array of them.
  std::vector<std::string> strings(std::string_view name);

  /// Fields that change nothing here.
  void ignore(std::initializer_list<std::string_view> names);
  /// A field of other servers that this one does not know: a number, or true and false for 1 and 0. Throws
  /// ApiError unless it asks for what happens anyway.
  void expect(std::string_view name, double neutral);
  /// Fields that were not asked for and say something: null, "", [] and {} do not.
  std::vector<std::string> unread() const;
  /// Throws ApiError for a field that was not asked for.
  void finish() const;

  std::string path_of(std::string_view name) const;
  const std::string& path() const { return path_; }

 private:
  const Json& object_;
  std::string path_;
  std::unordered_set<std::string> known_;
};

/// "a string", "an array": for messages.
std::string_view json_kind(const Json& value);

}  // namespace sluice::server
