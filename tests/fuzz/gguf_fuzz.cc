// libFuzzer: any bytes as a GGUF file. Either an Error or a file whose every value and tensor can be read.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "gguf/gguf.h"

namespace {

using namespace sluice::gguf;

/// Reads everything once, so that a bad bound is an address error.
void read_all(const File& file) {
  volatile uint64_t sink = 0;
  for (const Entry& entry : file.metadata()) {
    sink = sink + printable(entry.key).size();
    if (const auto* array = std::get_if<Array>(&entry.value.value)) {
      for (const Scalar& element : elements(*array, array->count)) {
        if (const auto* text = std::get_if<std::string_view>(&element)) sink = sink + printable(*text).size();
      }
    }
  }
  for (const Tensor& tensor : file.tensors()) {
    if (!tensor.bytes.empty())
      sink = sink + static_cast<uint64_t>(tensor.bytes.front() ^ tensor.bytes.back());
    if (file.tensor(tensor.name) == nullptr) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    read_all(File::parse("fuzz", std::as_bytes(std::span(data, size))));
  } catch (const sluice::Error&) {
    // what bad files are meant to end in
  }
  return 0;
}
