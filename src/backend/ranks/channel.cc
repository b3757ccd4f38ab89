// How ranks meet, and what they send. Signs of life are watch.cc's.
#include "backend/ranks/channel.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/clock.h"

namespace sluice::backend {
namespace {

constexpr int64_t kFirstWord = 2 * kSecond, kNextWord = 10 * kSecond;  // that others are waited for
constexpr uint64_t kMostFrame = 1ULL << 31;                            // of ranks that are known
constexpr int kLeaveSeconds = 10;                                      // that a rank has to clear up
constexpr int kDefaultPort = 29500;
constexpr int64_t kProtocol = 2;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

/// Of two lists with "; " between their items, the first item of one that is not in the other.
std::string first_other(const std::string& one, const std::string& other) {
  for (size_t begin = 0; begin < one.size();) {
    const size_t end = std::min(one.find("; ", begin), one.size());
    std::string item = one.substr(begin, end - begin);
    if (("; " + other + "; ").find("; " + item + "; ") == std::string::npos) return item;
    begin = end + 2;
  }
  return "fewer";
}

/// Tells at times that somebody is waited for, and gives up in the end.
class Patience {
 public:
  Patience(int seconds, const std::function<void(const std::string&)>& tell)
      : end_(now_ns() + seconds * kSecond), next_(now_ns() + kFirstWord), seconds_(seconds), tell_(tell) {}
  void wait(const std::string& whom) {
    const int64_t now = now_ns();
    if (now >= end_) fail("waited {} s for {}", seconds_, whom);
    if (now < next_) return;
    next_ = now + kNextWord;
    if (tell_) tell_("waiting for " + whom);
  }

 private:
  int64_t end_, next_;
  int seconds_;
  const std::function<void(const std::string&)>& tell_;
};

}  // namespace

Channel::Channel(ChannelOptions options) : options_(std::move(options)) {
  CHECK(ranks() > 1 && rank() >= 0 && rank() < ranks());
  peers_.resize(static_cast<size_t>(ranks()));
  Peer& self = peers_[static_cast<size_t>(rank())];
  self.host = host_name(), self.process = ::getpid();
  self.available_bytes = options_.identity.available_bytes;
  try {
    meet();
  } catch (...) {
    if (options_.mpi) options_.mpi->abandon();
    throw;
  }
  for (Peer& peer : peers_) peer.heard_ns = now_ns();
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  watch_ = std::thread([this] { watch(); });
}

void Channel::meet() {
  Launch& launch = options_.launch;
  if (options_.mpi) find_by_mpi();
  if (!options_.mpi && launch.local_ranks > 0 && launch.several_hosts() && launch.address.empty())
    throw UsageError("MASTER_ADDR: expected rank 0's address, since the ranks are on several hosts");
  if (launch.port == 0) launch.port = kDefaultPort;
  if (rank() == 0) {
    wait_for_others();
  } else {
    find_first();
  }
}

Channel::~Channel() {
  over_ = true;
  const uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) tell("a watch is not woken");  // it looks by itself, too
  watch_.join();
  ::close(wake_);
  if (!lost_) take_leave();
  if (lost_ && options_.mpi) options_.mpi->abandon();
}

// A connection that is closed with something unread takes with it what was said before: who is told that it
// is over closes first.
void Channel::take_leave() {
  if (rank() == 0) {
    for (int other = 1; other < ranks(); ++other)
      peers_[static_cast<size_t>(other)].data.write_frame(Frame::End, {});
  }
  sign_to_all('E', "");
  std::byte sign[1];
  for (int other = 1; other < ranks() && rank() == 0; ++other) {
    const Socket& signs = peers_[static_cast<size_t>(other)].signs;
    if (signs.empty()) continue;
    signs.set_patience(1);
    for (int seconds = 0; seconds < kLeaveSeconds && signs.read(sign);) ++seconds;
  }
}

std::string Channel::name(int rank) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  return peer.host.empty() ? fmt::format("rank {}", rank)
                           : fmt::format("rank {} ({}, process {})", rank, peer.host, peer.process);
}

// Where rank 0 listens is told by MPI: any port that is free.
void Channel::find_by_mpi() {
  Launch& launch = options_.launch;
  std::array<char, 512> where{};
  int port = 0;
  if (rank() == 0) {
    const std::string host = launch.several_hosts() && launch.address.empty() ? host_name() : launch.address;
    listener_ = Socket::listen_at(host, launch.port);
    port = listener_.port();
    host.copy(where.data(), where.size() - 1);
  }
  options_.mpi->broadcast(std::as_writable_bytes(std::span(where)));
  options_.mpi->broadcast(std::as_writable_bytes(std::span(&port, 1)));
  launch.address = where.data(), launch.port = port;
}

Packet Channel::hello(bool signs) const {
  const Peer& self = peers_[static_cast<size_t>(rank())];
  Packet packet;
  packet.add(kProtocol).add(int64_t{signs ? 1 : 0}).add(int64_t{rank()}).add(int64_t{ranks()});
  packet.add(self.host).add(self.process).add(self.available_bytes).add(self.address).add(self.port);
  packet.add(options_.identity.build).add(options_.identity.model).add(options_.identity.kernels);
  return packet;
}

std::string Channel::why_not(const std::string& who, PacketReader& hello) const {
  const std::string build = hello.text(), model = hello.text(), kernels = hello.text();
  const RankIdentity& mine = options_.identity;
  if (build != mine.build)
    return fmt::format("{} is another build: {}, rank 0 is {}", who, build, mine.build);
  if (model != mine.model) return fmt::format("{} has another model file than rank 0", who);
  if (kernels != mine.kernels)
    return fmt::format("{} has other kernels than rank 0: {}", who, first_other(kernels, mine.kernels));
  return {};
}

void Channel::admit(Socket socket) {
  socket.set_patience(kStrangerSeconds);
  const auto received = socket.read_frame(kMostHello);
  if (!received || received->kind != Frame::Hello) return tell("a connection that is no rank's was closed");
  std::string refusal;
  bool ends = false;  // a rank that will never fit
  try {
    PacketReader hello(received->data);
    if (hello.number() != kProtocol) fail("a rank is another build, with another protocol");
    const bool signs = hello.number() != 0;
    const int64_t other = hello.number(), all = hello.number();
    if (all != ranks() || other <= 0 || other >= ranks())
      fail("rank {} of {} came, where there are {} ranks", other, all, ranks());
    Peer& peer = peers_[static_cast<size_t>(other)];
    Peer found;
    found.host = hello.text(), found.process = hello.number(), found.available_bytes = hello.number();
    found.address = hello.text(), found.port = hello.number();
    const std::string who = fmt::format("rank {} ({}, process {})", other, found.host, found.process);
    if (!(signs ? peer.signs : peer.data).empty() || (signs && peer.process != found.process))
      fail("{} came, where {} is already", who, name(static_cast<int>(other)));
    refusal = why_not(who, hello);
    ends = !refusal.empty();
    if (!ends) {
      if (!signs) peer.host = found.host, peer.process = found.process;
      peer.available_bytes = found.available_bytes;
      peer.address = found.address, peer.port = found.port;
      (signs ? peer.signs : peer.data) = std::move(socket);
      return;
    }
  } catch (const Error& error) {
    refusal = error.what();
    tell(refusal);
  }
  const Packet packet = Packet().add(refusal);
  socket.write_frame(Frame::Refused, packet.data());
  if (!ends) return;
  for (const Peer& peer : peers_) {
    if (!peer.data.empty()) peer.data.write_frame(Frame::Refused, packet.data());
  }
  throw Error(refusal);
}

std::string Channel::missing() const {
  std::vector<int> list;
  for (int other = 1; other < ranks(); ++other) {
    if (peers_[static_cast<size_t>(other)].signs.empty()) list.push_back(other);
  }
  return list.empty() ? ""
                      : fmt::format("rank{} {} at {}:{}", list.size() == 1 ? "" : "s", fmt::join(list, ", "),
                                    options_.launch.address.empty() ? "127.0.0.1" : options_.launch.address,
                                    options_.launch.port);
}

void Channel::wait_for_others() {
  if (listener_.empty()) listener_ = Socket::listen_at(options_.launch.address, options_.launch.port);
  Patience patience(options_.patience_s, options_.tell);
  for (std::string whom = missing(); !whom.empty(); whom = missing()) {
    patience.wait(whom);
    std::vector<pollfd> list{{listener_.fd(), POLLIN, 0}};
    std::vector<int> of;
    for (int other = 1; other < ranks(); ++other) {
      if (peers_[static_cast<size_t>(other)].data.empty()) continue;
      list.push_back({peers_[static_cast<size_t>(other)].data.fd(), POLLIN, 0});
      of.push_back(other);
    }
    if (::poll(list.data(), list.size(), 200) <= 0) continue;
    // Who is here already says nothing before it is spoken to.
    for (size_t i = 0; i < of.size(); ++i) {
      if (list[i + 1].revents == 0) continue;
      const std::string gone = name(of[i]) + " has ended";
      const Packet packet = Packet().add(gone);
      for (const Peer& peer : peers_) {
        if (!peer.data.empty()) peer.data.write_frame(Frame::Refused, packet.data());
      }
      throw Error(gone);
    }
    if (list[0].revents == 0) continue;
    if (Socket socket = listener_.accept(); !socket.empty()) admit(std::move(socket));
  }
  listener_ = {};
  share_memory();
  welcome();
}

// Ranks of one host take of the same memory.
void Channel::share_memory() {
  available_bytes_ = std::numeric_limits<int64_t>::max();
  for (const Peer& peer : peers_) {
    const auto here =
        options_.identity.shares_memory ? std::ranges::count(peers_, peer.host, &Peer::host) : 1;
    available_bytes_ = std::min(available_bytes_, peer.available_bytes / here);
  }
}

void Channel::welcome() {
  Packet packet;
  packet.add(available_bytes_);
  for (const Peer& peer : peers_) packet.add(peer.host).add(peer.process).add(peer.address).add(peer.port);
  for (int other = 1; other < ranks(); ++other) {
    const Peer& peer = peers_[static_cast<size_t>(other)];
    peer.data.set_patience(0);
    if (!peer.data.write_frame(Frame::Welcome, packet.data())) fail("{} has ended", name(other));
  }
}

void Channel::find_first() {
  const Launch& launch = options_.launch;
  Patience patience(options_.patience_s, options_.tell);
  const std::string whom =
      fmt::format("rank 0 at {}:{} (this is rank {})", launch.address.empty() ? "127.0.0.1" : launch.address,
                  launch.port, rank());
  Peer& first = peers_[0];
  while (first.data.empty()) {
    first.data = Socket::connect_to(launch.address, launch.port);
    if (!first.data.empty()) break;
    patience.wait(whom);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (!options_.mpi && ranks() > 2) {
    Peer& self = peers_[static_cast<size_t>(rank())];
    self.address = first.data.address();
    listener_ = Socket::listen_at(self.address, 0);
    self.port = listener_.port();
  }
  first.data.write_frame(Frame::Hello, hello(false).data());
  first.signs = Socket::connect_to(launch.address, launch.port);
  if (!first.signs.empty()) first.signs.write_frame(Frame::Hello, hello(true).data());
  const auto answer = first.data.read_frame(kMostHello);  // rank 0 waits for the others
  if (!answer) fail("rank 0 has ended, or is none of ours: {}:{}", launch.address, launch.port);
  PacketReader reader(answer->data);
  if (answer->kind == Frame::Refused) throw Error(reader.text());
  if (answer->kind != Frame::Welcome) fail("rank 0 is no rank of ours: {}:{}", launch.address, launch.port);
  available_bytes_ = reader.number();
  for (Peer& peer : peers_) {
    peer.host = reader.text(), peer.process = reader.number();
    peer.address = reader.text(), peer.port = reader.number();
  }
}

void Channel::send(Frame kind, const Packet& packet) {
  for (int other = 1; other < ranks(); ++other) send_to(other, kind, packet.data());
}

void Channel::send_to(int other, Frame kind, std::span<const std::byte> data) {
  if (lost_ || !peers_[static_cast<size_t>(other)].data.write_frame(kind, data)) broken();
}

Received Channel::receive() { return receive_from(0); }

Received Channel::receive_from(int other) {
  if (!lost_) {
    if (auto received = peers_[static_cast<size_t>(other)].data.read_frame(kMostFrame))
      return std::move(*received);
  }
  broken();
}

void Channel::gather(std::span<float> all, std::span<const int64_t> counts) {
  if (lost_) broken();
  const int64_t begin = now_ns();
  const bool whole = options_.mpi ? options_.mpi->gather(all, counts, [this] { return !lost_; })
                                  : gather_by_sockets(all, counts);
  exchanged_ns_ += now_ns() - begin;
  if (!whole) broken();
}

// Rank 0 reads everybody's, then everybody gets the others'.
bool Channel::gather_by_sockets(std::span<float> all, std::span<const int64_t> counts) {
  const std::span<std::byte> bytes = std::as_writable_bytes(all);
  const auto piece = [&](int of) {
    size_t first = 0;
    for (int r = 0; r < of; ++r) first += static_cast<size_t>(counts[static_cast<size_t>(r)]);
    return std::pair(first * sizeof(float),
                     static_cast<size_t>(counts[static_cast<size_t>(of)]) * sizeof(float));
  };
  if (rank() != 0) {
    const Socket& first = peers_[0].data;
    const auto [at, mine] = piece(rank());
    return first.write(bytes.subspan(at, mine)) && first.read(bytes.first(at)) &&
           first.read(bytes.subspan(at + mine));
  }
  for (int other = 1; other < ranks(); ++other) {
    const auto [at, count] = piece(other);
    if (!peers_[static_cast<size_t>(other)].data.read(bytes.subspan(at, count))) return false;
  }
  for (int other = 1; other < ranks(); ++other) {
    const auto [at, count] = piece(other);
    const Socket& to = peers_[static_cast<size_t>(other)].data;
    if (!to.write(bytes.first(at)) || !to.write(bytes.subspan(at + count))) return false;
  }
  return true;
}

}  // namespace sluice::backend
