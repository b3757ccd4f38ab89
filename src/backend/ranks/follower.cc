// A rank that follows rank 0.
#include <array>
#include <map>
#include <optional>
#include <utility>

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
      if (received.kind != Frame::Step) end_all();
      switch (received.kind) {
        case Frame::Load: load(reader); break;
        case Frame::Compile: compile(reader); break;
        case Frame::Step: {
          Side& side = side_of(reader);
          if (together_.exchange == Exchange::ByDevices) {
            begin(side, reader);
            continue;
          }
          steps_[0].input.read(reader);
          (void)side.run(steps_[0].input.input(), nullptr);
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
  /// A step that devices run whole, while the one before it may still run. Rank 0 gives what is wanted.
  void begin(Side& side, PacketReader& reader) {
    Executable& executable = *side.executable();
    if (running_ != &executable || executable.facts().steps_in_flight < 2) end_all();
    running_ = &executable;
    Begun& step = steps_[next_ = 1 - next_];
    end(step);
    step.input.read(reader);
    step.wants.assign(static_cast<size_t>(step.input.input().outputs()), Want{.logits = false});
    step.ticket = executable.submit({.input = step.input.input(), .wants = step.wants});
  }
  void end_all() {
    for (const size_t one : {1 - next_, next_}) end(steps_[one]);
    running_ = nullptr;
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
  /// A step, and its ticket until it is collected.
  struct Begun {
    SentInput input;
    std::vector<Want> wants;
    std::optional<Ticket> ticket;
  };
  void end(Begun& step) {
    if (step.ticket) running_->collect(*std::exchange(step.ticket, std::nullopt));
  }

  std::array<Begun, 2> steps_;
  size_t next_ = 0;                // of steps_, the one that began last
  Executable* running_ = nullptr;  // whose they are
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
