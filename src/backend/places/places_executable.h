// A program cut into places, run by an executable of each.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/places/exchange.h"
#include "program/offload.h"
#include "program/places.h"

namespace sluice::backend::places {

/// A program cut into places, and what each of them runs. Tensors of places have no bytes of their own: they
/// are views; slots of experts have addresses of zeroes.
struct Sides {
  program::Program whole;
  std::vector<program::SlottedExperts> slotted;
  std::vector<program::Program> places;
  program::WeightBytes weights;

  Sides(program::Offloaded cut, const program::WeightBytes& bytes, size_t count)
      : whole(std::move(cut.program)), slotted(std::move(cut.slotted)), weights(bytes) {
    weights.resize(whole.tensors().size());
    for (size_t p = 0; p < count; ++p) places.push_back(program_at(whole, static_cast<int32_t>(p)));
  }
};

/// What runs steps of many rows by itself, over the first place's caches.
struct Streamed {
  std::unique_ptr<program::Executable> executable;  ///< null: nothing does
  size_t tensors = 0;                               ///< of the program before it was cut
  int64_t from_rows = 0;                            ///< 0: to be measured
};

/// By whom the ops of a program that was cut are run: places have bindings of their own.
std::vector<program::BoundKernel> kernels_of(const program::Program& program);

/// slots_are_its: whether it may fill the slots of experts, if there are any.
std::unique_ptr<program::Executable> make_executable(Sides sides, Executables executables,
                                                     const program::CompileOptions& options,
                                                     Streamed streamed, std::shared_ptr<void> slots);

}  // namespace sluice::backend::places
