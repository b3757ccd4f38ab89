// What rank 0's backend asks of the others, as packets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/ranks/packet.h"
#include "program/backend.h"
#include "program/own_weights.h"

namespace sluice::backend {

/// Who hands over what goes between ranks: their hosts, between two parts of a step; or their devices, whose
/// steps are whole (a backend that was made for one rank of several).
enum class Exchange : uint8_t { ByHosts, ByDevices };

/// What is dealt out: a part of every op (program::split), or whole layers, one rank behind the other
/// (program::deal_layers).
enum class Deal : uint8_t { Parts, Layers };

/// How ranks run a program together.
struct Together {
  Exchange exchange = Exchange::ByHosts;
  Deal deal = Deal::Parts;
};

/// A program of which each rank runs a place: cut evenly, or its layers dealt out. All of them read the token
/// table where every one has to: each has the file.
program::Program program_of_ranks(const program::Program& program, int ranks, Deal deal);

/// What one rank runs of a program.
struct Part {
  program::Program cut;                        ///< all ranks'
  program::Program mine;                       ///< this one's side
  program::WeightBytes weights;                ///< of `mine`; empty where no files were given
  std::shared_ptr<program::PartBytes> copies;  ///< that they point to, in part; or null

  /// `files` empty: the program alone is wanted.
  Part(const program::Program& program, const program::WeightBytes& files, int rank, int ranks,
       Together together);
};

/// What a rank has loaded, and of which part.
class RankWeights : public program::WeightSet {
 public:
  /// Loads the weights of `part`.
  RankWeights(std::shared_ptr<const Part> part, program::Backend& backend, const program::Progress& progress);
  int64_t bytes() const override { return loaded_->bytes(); }
  const Part& part() const { return *part_; }
  std::unique_ptr<program::Executable> compile(program::Backend& backend,
                                               const program::CompileOptions& options) const;

 private:
  std::shared_ptr<const Part> part_;
  std::shared_ptr<const program::WeightSet> loaded_;
};

/// The same of equal programs, and of no others but by chance.
int64_t fingerprint(const program::Program& program);

void add_options(Packet& packet, const program::CompileOptions& options);
program::CompileOptions read_options(PacketReader& reader);

void add_input(Packet& packet, const program::StepInput& input);

/// A step's rows as a rank got them.
class SentInput {
 public:
  void read(PacketReader& reader);
  const program::StepInput& input() const { return input_; }

 private:
  std::vector<int32_t> tokens_, positions_, sequences_, slots_, tables_, outputs_;
  std::vector<program::StateSlots> states_;
  program::StepInput input_;
};

}  // namespace sluice::backend
