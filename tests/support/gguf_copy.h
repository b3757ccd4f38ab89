// GGUF files read to be written again, whole or changed.
#pragma once

#include "gguf/writer.h"

namespace sluice::test {

template <typename To, typename From>
std::vector<To> array_of(const gguf::Array& array) {
  std::vector<To> values;
  for (const gguf::Scalar& element : gguf::elements(array, array.count)) {
    values.push_back(static_cast<To>(std::get<From>(element)));
  }
  return values;
}

/// A value as it was read, to be written; the types are those that models' files have.
inline gguf::WriteValue write_value(const gguf::Value& value) {
  using gguf::ValueType;
  switch (value.type) {
    case ValueType::U16: return static_cast<uint16_t>(std::get<uint64_t>(value.value));
    case ValueType::U32: return static_cast<uint32_t>(std::get<uint64_t>(value.value));
    case ValueType::I32: return static_cast<int32_t>(std::get<int64_t>(value.value));
    case ValueType::F32: return static_cast<float>(std::get<double>(value.value));
    case ValueType::Bool: return std::get<bool>(value.value);
    case ValueType::String: return std::string(std::get<std::string_view>(value.value));
    case ValueType::Array: break;
    default: fail("values of type {} are not copied", gguf::type_name(value.type));
  }
  const auto& array = std::get<gguf::Array>(value.value);
  switch (array.type) {
    case ValueType::I32: return array_of<int32_t, int64_t>(array);
    case ValueType::F32: return array_of<float, double>(array);
    case ValueType::String: return array_of<std::string, std::string_view>(array);
    default: fail("arrays of {} are not copied", gguf::type_name(array.type));
  }
}

/// A file's metadata and tensors, to be changed and written.
struct GgufCopy {
  gguf::WritePlan plan;
  std::vector<std::vector<std::byte>> bytes;  ///< of each tensor of the plan

  explicit GgufCopy(const gguf::File& file) {
    for (const gguf::Entry& entry : file.metadata()) {
      plan.metadata.push_back({std::string(entry.key), write_value(entry.value)});
    }
    for (const gguf::Tensor& tensor : file.tensors()) {
      plan.tensors.push_back({std::string(tensor.name),
                              tensor.type,
                              {tensor.shape.begin(), tensor.shape.begin() + tensor.dimensions}});
      bytes.push_back({tensor.bytes.begin(), tensor.bytes.end()});
    }
  }

  void write(const std::string& path) const {
    gguf::Writer writer(path, plan);
    for (const auto& tensor : bytes) writer.write(tensor);
    writer.finish();
  }
};

}  // namespace sluice::test
