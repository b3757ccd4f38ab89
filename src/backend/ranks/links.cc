// What goes from one rank to another and nobody else. With rank 0 every rank has a connection; two others
// make one when the first rows go between them.
#include <poll.h>

#include "backend/ranks/channel.h"
#include "base/clock.h"

namespace sluice::backend {

void Channel::give(int other, std::span<const float> values) {
  if (lost_) broken();
  const int64_t begin = now_ns();
  const bool given = options_.mpi ? options_.mpi->give(other, values, [this] { return !lost_; })
                                  : link_to(other).write(std::as_bytes(values));
  exchanged_ns_ += now_ns() - begin;
  if (!given) broken();
}

void Channel::take(int other, std::span<float> values) {
  if (lost_) broken();
  const int64_t begin = now_ns();
  const bool taken = options_.mpi ? options_.mpi->take(other, values, [this] { return !lost_; })
                                  : link_from(other).read(std::as_writable_bytes(values));
  exchanged_ns_ += now_ns() - begin;
  if (!taken) broken();
}

/// It listens since before rank 0 knew of it.
const Socket& Channel::link_to(int other) {
  const Peer& peer = peers_[static_cast<size_t>(other)];
  if (!peer.data.empty()) return peer.data;
  Socket socket = Socket::connect_to(peer.address, static_cast<int>(peer.port));
  if (socket.empty() || !socket.write_frame(Frame::Hello, hello(false).data())) broken();
  keep_link(other, std::move(socket));
  return peer.data;
}

/// Whoever connects and is none of those before this rank is closed.
const Socket& Channel::link_from(int other) {
  const Peer& peer = peers_[static_cast<size_t>(other)];
  while (peer.data.empty()) {
    if (lost_) broken();
    pollfd wait{listener_.fd(), POLLIN, 0};
    if (::poll(&wait, 1, 200) <= 0) continue;
    Socket socket = listener_.accept();
    if (socket.empty()) continue;
    socket.set_patience(kStrangerSeconds);
    const auto received = socket.read_frame(kMostHello);
    if (!received || received->kind != Frame::Hello) continue;
    try {
      PacketReader words(received->data);
      (void)words.number();  // the protocol: all have met by it
      (void)words.number();
      const int64_t who = words.number(), all = words.number();
      if (all != ranks() || who <= 0 || who >= rank()) continue;
      const Peer& expected = peers_[static_cast<size_t>(who)];
      if (words.text() != expected.host || words.number() != expected.process || !expected.data.empty())
        continue;
      socket.set_patience(0);
      keep_link(static_cast<int>(who), std::move(socket));
    } catch (const Error&) {  // too short
      continue;
    }
  }
  return peer.data;
}

/// A watch that hears of an end shuts all of them.
void Channel::keep_link(int other, Socket socket) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<size_t>(other)].data = std::move(socket);
  if (lost_) peers_[static_cast<size_t>(other)].data.shut();
}

}  // namespace sluice::backend
