// A rank that follows rank 0.
#include <map>

#include "backend/ranks/kept.h"
#include "backend/ranks/messages.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ranks/side.h"
#include "base/error.h"

namespace sluice::backend {
namespace {

using namespace program;

class Follower {
 public:
  Follower(Channel& channel, Backend& inner, const Source& source, Together together)
      : channel_(channel), inner_(inner), source_(source), together_(together) {}

  void run() {
    while (true) {
      const Received received = channel_.receive();
      PacketReader reader(received.data);
      switch (received.kind) {
        case Frame::Load: load(reader); break;
        case Frame::Compile: compile(reader); break;
        case Frame::Step: {
          Side& side = side_of(reader);
          input_.read(reader);
          together_.exchange == Exchange::ByHosts ? (void)side.run(input_.input(), nullptr) : run_whole(side);
          break;
        }
        case Frame::Peek: peek(reader); break;
        case Frame::Poke: poke(reader); break;
        case Frame::ReadKept: send_kept(channel_, executable_of(reader), reader); break;
        case Frame::WriteKept: write_kept(executable_of(reader), reader); break;
        case Frame::Drop: sides_.erase(reader.number()); break;
        case Frame::End: return;
        default: fail("rank 0 asks for {}, which is none of ours", static_cast<uint32_t>(received.kind));
      }
    }
  }

 private:
  void load(PacketReader& reader) {
    auto part = std::make_shared<const Part>(source_.program, source_.weights, channel_.rank(),
                                             channel_.ranks(), together_);
    if (reader.number() != fingerprint(part->cut))
      fail("rank 0 runs another program; flags have to be the same at every rank");
    weights_ = std::make_shared<const RankWeights>(std::move(part), inner_, Progress{});
  }
  /// Rank 0 gives what is wanted.
  void run_whole(Side& side) {
    wants_.assign(static_cast<size_t>(input_.input().outputs()), Want{.logits = false});
    run_step(*side.executable(), {.input = input_.input(), .wants = wants_});
  }
  void compile(PacketReader& reader) {
    const int64_t number = reader.number();
    const CompileOptions options = read_options(reader);
    if (weights_ == nullptr) fail("rank 0 compiles what was not loaded");
    sides_[number] =
        std::make_unique<Side>(weights_->part().cut, weights_->compile(inner_, options), options, channel_);
    Packet ready;
    add_kept(ready, kept_by(sides_[number]->executable()));
    channel_.send_to(0, Frame::Values, ready.data());
  }
  Side& side_of(PacketReader& reader) {
    const auto found = sides_.find(reader.number());
    if (found == sides_.end()) fail("rank 0 steps what was not compiled");
    return *found->second;
  }
  Executable& executable_of(PacketReader& reader) {
    Executable* const executable = side_of(reader).executable();
    if (executable == nullptr) fail("rank 0 asks for what is not here: this rank has nothing to do");
    return *executable;
  }
  void peek(PacketReader& reader) {
    Executable& executable = executable_of(reader);
    const TensorId id = tensor_of(reader);
    const int64_t rows = reader.number();
    const Tensor& tensor = weights_->part().cut[id];
    values_.resize(static_cast<size_t>(rows * tensor.heads() * tensor.columns()));
    executable.peek(id, rows, values_);
    channel_.send_to(0, Frame::Values, Packet().add_list(std::span<const float>(values_)).data());
  }
  void poke(PacketReader& reader) {
    Executable& executable = executable_of(reader);
    const TensorId id = tensor_of(reader);
    const int64_t rows = reader.number();
    reader.list(values_);
    executable.poke(id, rows, values_);
  }
  TensorId tensor_of(PacketReader& reader) const {
    const Program& cut = weights_->part().cut;
    const int64_t id = reader.number();
    if (id < 0 || id >= std::ssize(cut.tensors()) || cut[static_cast<TensorId>(id)].place != channel_.rank())
      fail("rank 0 asks for a tensor that is not here");
    return static_cast<TensorId>(id);
  }

  Channel& channel_;
  Backend& inner_;
  const Source& source_;
  Together together_;
  std::shared_ptr<const RankWeights> weights_;
  std::map<int64_t, std::unique_ptr<Side>> sides_;
  SentInput input_;
  std::vector<Want> wants_;
  std::vector<float> values_;
};

}  // namespace

void follow(Channel& channel, Backend& inner, const Source& source, Together together) {
  try {
    Follower(channel, inner, source, together).run();
  } catch (const std::exception& error) {
    channel.abort(error.what());
    throw;
  }
}

}  // namespace sluice::backend
