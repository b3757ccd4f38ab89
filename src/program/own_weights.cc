#include "program/own_weights.h"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <map>
#include <new>
#include <tuple>

#include "base/check.h"
#include "program/op_info.h"

namespace sluice::program {
namespace {

int64_t numbers(const Tensor& tensor) { return tensor.shape[0] * tensor.shape[1] * tensor.shape[2]; }

bool is_whole(const Tensor& part, const Tensor& whole) {
  return part.offset == 0 && part.shape == whole.shape && part.stride == whole.stride;
}

size_t bytes_of(quant::Type type, int64_t count) {
  const quant::TypeInfo& info = quant::type_info(type);
  CHECK(count % info.block == 0, "{} numbers of {}", count, info.name);
  return static_cast<size_t>(count / info.block * info.bytes);
}

/// The rows of a part, one behind the other.
void copy_part(const Tensor& part, std::span<const std::byte> from, std::span<std::byte> to) {
  const size_t row = bytes_of(part.type, part.columns());
  size_t at = 0;
  for (int64_t m = 0; m < part.shape[0]; ++m) {
    for (int64_t r = 0; r < part.shape[1]; ++r, at += row) {
      const size_t first = bytes_of(part.type, part.offset + m * part.stride[0] + r * part.stride[1]);
      std::memcpy(to.data() + at, from.data() + first, row);
    }
  }
}

}  // namespace

PartBytes::~PartBytes() {
  for (const std::span<std::byte> piece : pieces_) ::munmap(piece.data(), piece.size());
}

std::span<std::byte> PartBytes::add(size_t bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return pieces_.emplace_back(static_cast<std::byte*>(at), bytes);
}

void PartBytes::release() {
  for (const std::span<std::byte> piece : pieces_) ::madvise(piece.data(), piece.size(), MADV_DONTNEED);
}

OwnWeights own_weights(const Program& program, const WeightBytes& files) {
  OwnWeights own;
  own.copies = std::make_shared<PartBytes>();
  std::vector<bool> used(program.tensors().size(), false);
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      if (id != kNoTensor) used[static_cast<size_t>(id)] = true;
    });
  }
  if (!files.empty()) own.weights.resize(program.tensors().size());
  // Of the same part of the same tensor there is one copy.
  std::map<std::tuple<TensorId, int64_t, std::array<int64_t, 3>>, std::span<const std::byte>> known;
  for (size_t i = 0; i < program.tensors().size(); ++i) {
    Tensor tensor = program.tensors()[i];
    if (tensor.kind == Kind::Weight && used[i]) {
      const TensorId storage = program.storage(static_cast<TensorId>(i));
      const bool whole = is_whole(tensor, program[storage]);
      if (!files.empty()) {
        std::span<const std::byte>& bytes = known[{storage, tensor.offset, tensor.shape}];
        const std::span<const std::byte> file = files[static_cast<size_t>(storage)];
        if (whole) bytes = file;
        if (bytes.empty()) {
          const std::span<std::byte> copy = own.copies->add(bytes_of(tensor.type, numbers(tensor)));
          copy_part(tensor, file, copy);
          bytes = copy;
        }
        own.weights[i] = bytes;
      }
      tensor.base = kNoTensor;
      tensor.offset = 0;
      tensor.stride = {tensor.shape[1] * tensor.columns(), tensor.columns()};
    }
    own.program.add(std::move(tensor));
  }
  for (const Op& op : program.ops()) own.program.add(op);
  own.program.set_output(program.output());
  return own;
}

}  // namespace sluice::program
