#include "cli/model_shapes.h"

#include <sys/mman.h>

#include <cstring>

#include "base/error.h"
#include "gguf/synth.h"

namespace sluice::cli {

namespace {

/// The default mix's plan, but every quantised tensor whose rows are whole blocks of the type is of it.
gguf::WritePlan plan_of_type(const quant::TypeInfo& type, gguf::SynthOptions options) {
  options.mix = &gguf::synth_mixes()[0];
  gguf::WritePlan plan = gguf::plan_synth(options);
  for (gguf::WriteTensor& tensor : plan.tensors) {
    if (tensor.type != quant::Type::F32 && tensor.shape[0] % type.block == 0) tensor.type = type.type;
  }
  return plan;
}

gguf::WritePlan plan_of(const std::string& model, const std::string& mix) {
  const gguf::SynthOptions options{.model = gguf::find_synth_model(model), .mix = gguf::find_synth_mix(mix)};
  if (options.model == nullptr) fail("{}: no model of this name; sluice synth --help lists them", model);
  if (options.mix != nullptr) return gguf::plan_synth(options);
  const quant::TypeInfo* type = quant::find_type(mix);
  if (type == nullptr || type->decode == nullptr)
    fail("{}: no mix of this name, which sluice synth --help lists, and no type, as Q2_K", mix);
  return plan_of_type(*type, options);
}

}  // namespace

ModelShapes::ModelShapes(const std::string& model, const std::string& mix, quant::Type cache) {
  const gguf::WritePlan plan = plan_of(model, mix);
  const std::string header = plan.header();
  size_ = plan.file_bytes();
  // Memory that nobody touches takes none.
  bytes_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes_ == MAP_FAILED) fail("{}: no address space for {} bytes", model, size_);
  std::memcpy(bytes_, header.data(), header.size());
  model_ = std::make_unique<model::Model>(model::Model::load(
      gguf::File::parse(model + " " + mix, {static_cast<const std::byte*>(bytes_), size_}), cache));
}

ModelShapes::~ModelShapes() {
  model_.reset();
  ::munmap(bytes_, size_);
}

}  // namespace sluice::cli
