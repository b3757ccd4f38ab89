#include "program/binding.h"

namespace sluice::program {

std::vector<PackedWeight> weights_in_file(const Program& program) {
  std::vector<PackedWeight> list;
  for (size_t i = 0; i < program.tensors().size(); ++i) {
    const Tensor& tensor = program.tensors()[i];
    if (tensor.kind != Kind::Weight || tensor.base != kNoTensor) continue;
    const auto& [matrices, rows, columns] = tensor.shape;
    list.push_back({static_cast<TensorId>(i), "as in the file",
                    quant::bytes_of(quant::type_info(tensor.type), matrices * rows * columns)});
  }
  return list;
}

int64_t bytes_of(const std::vector<PackedWeight>& weights) {
  int64_t bytes = 0;
  for (const PackedWeight& weight : weights) bytes += weight.bytes;
  return bytes;
}

}  // namespace sluice::program
