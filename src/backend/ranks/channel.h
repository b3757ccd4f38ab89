// The ranks of a model: processes that each run a part of every op (program/places.h). Rank 0 waits for the
// others at its address, and refuses those whose build, file or kernels are not its own; then each of them
// has two connections with rank 0. One carries what rank 0 says and what is handed over between ops (unless
// MPI does that; links.cc has those of ranks that follow each other), the other signs of life: by them every
// rank hears within some seconds that one is gone, and which. Knows bytes and floats, no program.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/ranks/launch.h"
#include "backend/ranks/mpi.h"
#include "backend/ranks/packet.h"
#include "backend/ranks/socket.h"

namespace sluice::backend {

inline constexpr int64_t kSecond = 1'000'000'000;  ///< ns
inline constexpr int kStrangerSeconds = 2;         ///< in which a connection says what it is
inline constexpr uint64_t kMostHello = 1 << 16;    ///< bytes of that

/// What is to be the same at every rank, and what memory this one has.
struct RankIdentity {
  std::string build;    ///< "0.2.0 (abc1234)"
  std::string model;    ///< what the file is, as a key
  std::string kernels;  ///< what its sums depend on
  int64_t available_bytes = 0;
  bool shares_memory = true;  ///< with the other ranks of its host
};

struct ChannelOptions {
  Launch launch;
  RankIdentity identity;
  std::unique_ptr<Mpi> mpi = {};                         ///< null: TCP carries everything
  std::function<void(const std::string&)> tell = {};     ///< lines for a user
  std::function<void(const std::string&)> on_loss = {};  ///< a rank is gone: from a thread of the channel's
  int patience_s = 600;                                  ///< for ranks that start late
};

class Channel {
 public:
  /// Meets the others. Throws Error where one of them does not come, or does not fit.
  explicit Channel(ChannelOptions options);
  /// Rank 0: the others end, too.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const { return options_.launch.rank; }
  int ranks() const { return options_.launch.ranks; }
  /// "TCP" or "MPI".
  const char* carrier() const { return options_.mpi ? "MPI" : "TCP"; }
  /// Of the rank that has least, where those of a host share it evenly.
  int64_t available_bytes() const { return available_bytes_; }
  /// "rank 1 (host, process 123)".
  std::string name(int rank) const;

  // All of these throw Error "rank 1 (host, process 123) has ended" when one is gone. They are called by one
  // thread at a time.
  /// Rank 0 to all others.
  void send(Frame kind, const Packet& packet);
  /// The next frame from rank 0, at another rank.
  Received receive();
  /// From a rank to rank 0, or from rank 0 to it, apart from what all hear.
  void send_to(int rank, Frame kind, std::span<const std::byte> data);
  Received receive_from(int rank);
  /// Every rank has counts[rank] numbers, which lie in `all` behind those of the ranks before it; then `all`
  /// is whole at every rank.
  void gather(std::span<float> all, std::span<const int64_t> counts);
  /// From one rank to another, which calls take() with as many numbers. Two ranks that are not the first one
  /// connect when they first do this: the one that gives to the other, which comes later in the program.
  void give(int rank, std::span<const float> values);
  void take(int rank, std::span<float> values);

  /// Nanoseconds that gather(), give() and take() have taken so far, waiting for others included. For the
  /// thread that calls these.
  int64_t exchanged_ns() const { return exchanged_ns_; }

  /// Why nothing works any more: a rank that is gone. Empty: all is well. From any thread.
  std::string failure() const;
  /// Tells the others that this one cannot go on, and why.
  void abort(const std::string& why);

 private:
  struct Peer {
    std::string host;
    int64_t process = 0, available_bytes = 0;
    std::string address = {};  ///< where others find it: that by which it reaches rank 0
    int64_t port = 0;
    Socket data, signs;
    int64_t heard_ns = 0;
    std::vector<std::byte> unread = {};  ///< of its signs
  };

  void meet();
  void take_leave();
  void find_by_mpi();
  void wait_for_others();
  void find_first();
  /// Takes a connection of a rank. Throws Error where the rank does not fit.
  void admit(Socket socket);
  std::string why_not(const std::string& who, PacketReader& hello) const;
  Packet hello(bool signs) const;
  void welcome();
  void share_memory();
  std::string missing() const;
  void tell(const std::string& line) const {
    if (options_.tell) options_.tell(line);
  }
  bool gather_by_sockets(std::span<float> all, std::span<const int64_t> counts);
  const Socket& link_to(int other);
  const Socket& link_from(int other);
  void keep_link(int other, Socket socket);
  bool is_peer(int other) const { return other != rank() && (rank() == 0 || other == 0); }

  void watch();
  void look(int rank, int64_t now);
  bool read_signs(int rank);
  void lose(const std::string& why, bool pass_on);
  void sign_to_all(char kind, const std::string& text);
  [[noreturn]] void broken();

  ChannelOptions options_;
  Socket listener_;          ///< rank 0's, until all are here; another's for those before it
  std::vector<Peer> peers_;  ///< by rank; connections of those that this one speaks with
  int64_t available_bytes_ = 0, exchanged_ns_ = 0;

  mutable std::mutex mutex_;  ///< of what follows, of writing signs, and of links that are kept
  std::string failure_;
  std::atomic<bool> lost_{false}, over_{false};
  int wake_ = -1;  ///< an eventfd: the watch is over
  std::thread watch_;
};

}  // namespace sluice::backend
