#include "server/fields.h"

#include <cmath>

#include "base/interruption.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

/// Bytes of memory that a value takes, and a key; and for each byte of their text: as a value, as a part of a
/// conversation, in a prompt, as tokens.
constexpr size_t kValueBytes = 48, kKeyBytes = 96, kTextCopies = 4;

constexpr int64_t kMostValues = 2'000'000;
constexpr int64_t kMostKeySteps = 20'000'000;

/// Looks at a text before values are made of it. An object finds a key by going through those before it, so
/// what keys cost is counted too.
class Weigher : public Json::json_sax_t {
 public:
  std::string problem;
  size_t bytes = 0;  ///< that the values will take

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t& text) override {
    bytes += kTextCopies * text.size();
    return value();
  }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(); }
  bool key(string_t& text) override {
    bytes += kKeyBytes + kTextCopies * text.size();
    key_steps_ += ++keys_.back();
    return key_steps_ <= kMostKeySteps || refuse("it has too many keys");
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(fmt::format("it is no JSON at byte {}", position));
  }

 private:
  bool refuse(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }
  bool value() {
    Interruptible::look();
    bytes += kValueBytes;
    return ++values_ <= kMostValues || refuse("it has too many values");
  }
  bool open() {
    keys_.push_back(0);
    if (keys_.size() > text::kJsonDepth)
      return refuse(fmt::format("it is nested deeper than {}", text::kJsonDepth));
    return value();
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  int64_t values_ = 0, key_steps_ = 0;
  std::vector<int64_t> keys_;  ///< of each object that is open
};

/// A number without a fraction, unless 64 bits are too few for it.
std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return {};
  if (value.is_number_integer()) return value.get<int64_t>();
  const double number = value.get<double>();
  if (!(number >= -0x1p63 && number < 0x1p63)) return {};
  return static_cast<int64_t>(number);
}

}  // namespace

Json parse_json(std::string_view body, const std::function<void(size_t)>& take) {
  const text::ExactJson exact(body);
  Weigher weigher;
  if (!text::read_json(exact.text(), weigher))
    throw ApiError(400, "the body cannot be read: " + weigher.problem);
  if (take) take(weigher.bytes);
  return exact.value();
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::string: return "a string";
    case Json::value_t::array: return "an array";
    case Json::value_t::object: return "an object";
    default: return "a number";
  }
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  const std::string message = fmt::format("expected an object, not {}", json_kind(object));
  if (path_.empty()) throw ApiError(400, "the body: " + message);
  bad_field(path_, "{}", message);
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const Json* Fields::any(std::string_view name) {
  known_.emplace(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* Fields::array(std::string_view name) {
  const Json* value = any(name);
  if (value && !value->is_array()) bad_field(path_of(name), "expected an array, not {}", json_kind(*value));
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = any(name);
  if (value && !value->is_object()) bad_field(path_of(name), "expected an object, not {}", json_kind(*value));
  return value;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* value = any(name);
  if (!value) return {};
  if (!value->is_string()) bad_field(path_of(name), "expected a string, not {}", json_kind(*value));
  return value->get<std::string>();
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = any(name);
  if (!value) return {};
  if (!value->is_boolean()) bad_field(path_of(name), "expected true or false, not {}", json_kind(*value));
  return value->get<bool>();
}

std::optional<double> Fields::number(std::string_view name, double low, double high) {
  const Json* value = any(name);
  if (!value) return {};
  if (!value->is_number() && !text::number_text(*value))
    bad_field(path_of(name), "expected a number, not {}", json_kind(*value));
  if (const auto digits = text::number_text(*value))
    bad_field(path_of(name), "{}, expected {} to {}", digits->substr(0, 40), low, high);
  const double number = value->get<double>();
  if (!(number >= low && number <= high))
    bad_field(path_of(name), "{}, expected {} to {}", number, low, high);
  return number;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = any(name);
  if (!value) return {};
  if (const auto digits = text::number_text(*value))
    bad_field(path_of(name), "{}, expected {} to {}", digits->substr(0, 40), low, high);
  const bool whole = value->is_number_integer() ||
                     (value->is_number() && std::nearbyint(value->get<double>()) == value->get<double>());
  if (!whole) bad_field(path_of(name), "expected a whole number, not {}", json_kind(*value));
  const auto number = whole_number(*value);
  if (!number || *number < low || *number > high)
    bad_field(path_of(name), "{}, expected {} to {}", value->dump(), low, high);
  return number;
}

std::optional<std::string> Fields::choice(std::string_view name,
                                          std::initializer_list<std::string_view> allowed) {
  auto value = string(name);
  if (!value) return value;
  for (const std::string_view one : allowed)
    if (*value == one) return value;
  bad_field(path_of(name), "{}, expected {}", text::json_quote(*value), fmt::join(allowed, ", "));
}

std::vector<std::string> Fields::strings(std::string_view name) {
  const Json* value = any(name);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array())
    bad_field(path_of(name), "expected a string or an array of them, not {}", json_kind(*value));
  std::vector<std::string> strings;
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& one = (*value)[i];
    if (!one.is_string())
      bad_field(fmt::format("{}[{}]", path_of(name), i), "expected a string, not {}", json_kind(one));
    strings.push_back(one.get<std::string>());
  }
  return strings;
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void Fields::expect(std::string_view name, double neutral) {
  const Json* value = any(name);
  if (!value) return;
  const bool same = value->is_boolean() ? value->get<bool>() == (neutral != 0)
                                        : value->is_number() && value->get<double>() == neutral;
  if (!same)
    bad_field(path_of(name), "{} is not supported here, only {:g}, which changes nothing", value->dump(),
              neutral);
}

std::vector<std::string> Fields::unread() const {
  std::vector<std::string> names;
  const auto asks_nothing = [](const Json& value) { return value.empty() || value == ""; };
  for (const auto& [name, value] : object_.items())
    if (!known_.contains(name) && !asks_nothing(value)) names.push_back(name);
  return names;
}

void Fields::finish() const {
  const auto names = unread();
  if (!names.empty()) bad_field(path_of(names.front()), "this server knows no such field");
}

}  // namespace sluice::server
