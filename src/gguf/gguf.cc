// Reading what a parsed GGUF file holds: look-ups and typed values. Parsing is in parse.cc.
#include "gguf/gguf.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace sluice::gguf {
namespace {

std::optional<int64_t> as_integer(const Scalar& scalar) {
  if (const auto* number = std::get_if<int64_t>(&scalar)) return *number;
  if (const auto* number = std::get_if<uint64_t>(&scalar)) {
    if (*number <= std::numeric_limits<int64_t>::max()) return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

std::optional<double> as_number(const Scalar& scalar) {
  if (const auto* number = std::get_if<double>(&scalar)) return *number;
  if (const auto* number = std::get_if<int64_t>(&scalar)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(&scalar)) return static_cast<double>(*number);
  return std::nullopt;
}

std::optional<bool> as_boolean(const Scalar& scalar) {
  if (const auto* flag = std::get_if<bool>(&scalar)) return *flag;
  if (const auto number = as_integer(scalar)) return *number != 0;
  return std::nullopt;
}

std::optional<std::string_view> as_string(const Scalar& scalar) {
  if (const auto* text = std::get_if<std::string_view>(&scalar)) return *text;
  return std::nullopt;
}

/// "an array of 3 u32", "a string", "u64 18446744073709551615".
std::string describe(const Value& value) {
  if (const auto* array = std::get_if<Array>(&value.value)) {
    return fmt::format("an array of {} {}", array->count, type_name(array->type));
  }
  if (const auto* number = std::get_if<uint64_t>(&value.value)) {
    return fmt::format("{} {}", type_name(value.type), *number);
  }
  return fmt::format("of type {}", type_name(value.type));
}

/// The value of `key` as `convert` reads it, or nullopt without such a key; Error when it is of another kind.
template <typename Convert>
auto read(const File& file, std::string_view key, const char* expected, Convert convert)
    -> decltype(convert(Scalar{})) {
  const Value* value = file.find(key);
  if (value == nullptr) return std::nullopt;
  auto result = convert(value->value);
  if (!result) fail("{}: {} is {}, expected {}", file.path(), printable(key), describe(*value), expected);
  return result;
}

/// The elements of an array as `convert` reads each of them. Vocabularies are the longest that anybody reads:
/// real ones have 300,000 tokens and 600,000 merges.
constexpr uint64_t kMostElements = 1 << 20;
template <typename T, typename Convert>
std::optional<std::vector<T>> read_array(const File& file, std::string_view key, const char* expected,
                                         Convert convert) {
  return read(file, key, expected, [&](const Scalar& scalar) -> std::optional<std::vector<T>> {
    const auto* array = std::get_if<Array>(&scalar);
    if (array == nullptr) return std::nullopt;
    if (array->count > kMostElements) {
      fail("{}: {} has {} elements, expected at most {}", file.path(), printable(key), array->count,
           kMostElements);
    }
    std::vector<T> result;
    result.reserve(array->count);
    for (const Scalar& element : elements(*array, array->count)) {
      const auto converted = convert(element);
      if (!converted) return std::nullopt;
      result.push_back(*converted);
    }
    return result;
  });
}

/// The item of `items` whose name this is, through indices sorted by name; null without one.
template <typename Item, typename Name>
const Item* look_up(const std::vector<Item>& items, const std::vector<uint32_t>& order, std::string_view name,
                    Name name_of) {
  const auto at =
      std::lower_bound(order.begin(), order.end(), name,
                       [&](uint32_t i, std::string_view wanted) { return name_of(items[i]) < wanted; });
  return at != order.end() && name_of(items[*at]) == name ? &items[*at] : nullptr;
}

}  // namespace

const char* type_name(ValueType type) {
  switch (type) {
    case ValueType::U8: return "u8";
    case ValueType::I8: return "i8";
    case ValueType::U16: return "u16";
    case ValueType::I16: return "i16";
    case ValueType::U32: return "u32";
    case ValueType::I32: return "i32";
    case ValueType::F32: return "f32";
    case ValueType::Bool: return "bool";
    case ValueType::String: return "string";
    case ValueType::Array: return "array";
    case ValueType::U64: return "u64";
    case ValueType::I64: return "i64";
    case ValueType::F64: return "f64";
  }
  return "unknown";
}

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.dimensions; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(tensor.shape[static_cast<size_t>(i)]);
  }
  return text + "]";
}

const Value* File::find(std::string_view key) const {
  const Entry* entry = look_up(metadata_, by_key_, key, [](const Entry& e) { return e.key; });
  return entry != nullptr ? &entry->value : nullptr;
}

const Tensor* File::tensor(std::string_view name) const {
  return look_up(tensors_, by_name_, name, [](const Tensor& t) { return t.name; });
}

std::optional<int64_t> File::integer(std::string_view key) const {
  return read(*this, key, "an integer", as_integer);
}

std::optional<double> File::number(std::string_view key) const {
  return read(*this, key, "a number", as_number);
}

std::optional<bool> File::boolean(std::string_view key) const {
  return read(*this, key, "a bool", as_boolean);
}

std::optional<std::string_view> File::string(std::string_view key) const {
  return read(*this, key, "a string", as_string);
}

std::optional<std::vector<std::string_view>> File::strings(std::string_view key) const {
  return read_array<std::string_view>(*this, key, "an array of strings", as_string);
}

std::optional<std::vector<int64_t>> File::integers(std::string_view key) const {
  return read_array<int64_t>(*this, key, "an array of integers", as_integer);
}

std::optional<std::vector<double>> File::numbers(std::string_view key) const {
  return read_array<double>(*this, key, "an array of numbers", as_number);
}

}  // namespace sluice::gguf
