#include "backend/ranks/messages.h"

#include "program/op_info.h"
#include "program/places.h"

namespace sluice::backend {

using namespace program;

Program program_of_ranks(const Program& program, int ranks, Deal deal) {
  if (deal == Deal::Layers) return deal_layers(program, static_cast<size_t>(ranks));
  return split(program, std::vector<double>(static_cast<size_t>(ranks), 1.0), Tables::Everywhere);
}

namespace {

/// What devices exchange by themselves: a copy has both of its ends at either, so that they know each other,
/// and of what is gathered rank 0 has every rank's part, into which the others send theirs.
Program for_devices(const Program& side, const Program& cut, int rank) {
  std::vector<const Op*> across;
  for (const Op& op : cut.ops()) {
    bool is_ours = false;
    if (!info(op).across_places) continue;
    info(op).operands(op,
                      [&](const char*, TensorId id, bool) { is_ours = is_ours || cut[id].place == rank; });
    if (is_ours) across.push_back(&op);
  }
  Program program;
  for (const Tensor& tensor : side.tensors()) program.add(tensor);
  auto next = across.begin();
  for (const Op& op : side.ops()) {
    const Op& whole = info(op).across_places ? **next++ : op;
    const bool is_kept_whole =
        std::holds_alternative<Copy>(op.args) || (std::holds_alternative<AllGather>(op.args) && rank == 0);
    program.add(is_kept_whole ? whole : op);
  }
  program.set_output(side.output());
  return program;
}

}  // namespace

Part::Part(const Program& program, const WeightBytes& files, int rank, int ranks, Together together)
    : cut(program_of_ranks(program, ranks, together.deal)), mine(program_at(cut, rank)), weights(files) {
  if (!files.empty()) weights.resize(cut.tensors().size());
  if (together.exchange == Exchange::ByHosts) return;
  OwnWeights own = own_weights(for_devices(mine, cut, rank), weights);
  mine = std::move(own.program), weights = std::move(own.weights), copies = std::move(own.copies);
}

RankWeights::RankWeights(std::shared_ptr<const Part> part, Backend& backend, const Progress& progress)
    : part_(std::move(part)) {
  const Source source{part_->mine, part_->weights};
  loaded_ = backend.load({&source, 1}, progress);
  if (part_->copies) part_->copies->release();
}

std::unique_ptr<Executable> RankWeights::compile(Backend& backend, const CompileOptions& options) const {
  if (part_->mine.ops().empty()) return nullptr;
  return backend.compile({part_->mine, part_->weights}, loaded_, options);
}

// FNV-1a.
int64_t fingerprint(const Program& program) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : dump(program)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return static_cast<int64_t>(hash);
}

void add_options(Packet& packet, const CompileOptions& options) {
  packet.add(options.max_rows).add(options.max_outputs).add(options.cache_pages);
  packet.add(int64_t{options.batch_invariant}).add(options.context).add(int64_t{options.warm});
  packet.add(options.state_slots);
}

CompileOptions read_options(PacketReader& reader) {
  CompileOptions options;
  options.max_rows = reader.number(), options.max_outputs = reader.number();
  options.cache_pages = reader.number();
  options.batch_invariant = reader.number() != 0;
  options.context = reader.number();
  options.warm = reader.number() != 0;
  options.state_slots = reader.number();
  return options;
}

void add_input(Packet& packet, const StepInput& input) {
  packet.add(int64_t{input.pages_per_sequence});
  for (const auto& list :
       {input.tokens, input.positions, input.sequences, input.slots, input.page_tables, input.output_rows})
    packet.add_list(list);
  packet.add_list(input.states);
}

void SentInput::read(PacketReader& reader) {
  const auto pages = static_cast<int32_t>(reader.number());
  for (auto* list : {&tokens_, &positions_, &sequences_, &slots_, &tables_, &outputs_}) reader.list(*list);
  reader.list(states_);
  input_ = {.tokens = tokens_,
            .positions = positions_,
            .sequences = sequences_,
            .slots = slots_,
            .page_tables = tables_,
            .pages_per_sequence = pages,
            .output_rows = outputs_,
            .states = states_};
}

}  // namespace sluice::backend
