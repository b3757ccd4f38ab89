// Signs of life between rank 0 and each other rank: a byte a second; a word before a rank leaves; a word why
// it cannot go on. Who closes its connection without a word, or is silent for too long, is gone.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backend/ranks/channel.h"
#include "base/clock.h"

namespace sluice::backend {
namespace {

constexpr int64_t kSilence = 4 * kSecond;
constexpr char kAlive = '.', kEnds = 'E', kFails = 'X';
constexpr uint32_t kMostWords = 4096;

}  // namespace

void Channel::sign_to_all(char kind, const std::string& text) {
  std::vector<std::byte> bytes{static_cast<std::byte>(kind)};
  if (kind == kFails) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(text.size(), kMostWords));
    bytes.resize(1 + sizeof count + count);
    std::memcpy(bytes.data() + 1, &count, sizeof count);
    std::memcpy(bytes.data() + 1 + sizeof count, text.data(), count);
  }
  const std::lock_guard lock(mutex_);
  for (int other = 0; other < ranks(); ++other) {
    const Socket& to = peers_[static_cast<size_t>(other)].signs;
    // Who does not read them is gone, which its silence will tell: nobody waits for it.
    if (is_peer(other) && !to.empty())
      (void)::send(to.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Channel::lose(const std::string& why, bool pass_on) {
  if (over_) return;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = why;
  }
  if (pass_on) sign_to_all(kFails, why);
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    for (const Peer& peer : peers_) peer.data.shut();  // whoever waits for it
  }
  if (options_.on_loss) options_.on_loss(why);
}

std::string Channel::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Channel::abort(const std::string& why) { lose(why, true); }

// The connection may be seen to break before the watch knows who is gone.
void Channel::broken() {
  for (int i = 0; i < 60 && !lost_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::string why = failure();
  throw Error(why.empty() ? "the connection between the ranks is broken" : why);
}

// False: it is closed.
bool Channel::read_signs(int other) {
  Peer& peer = peers_[static_cast<size_t>(other)];
  std::byte bytes[512];
  while (true) {
    const ssize_t got = ::recv(peer.signs.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      peer.unread.insert(peer.unread.end(), bytes, bytes + got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

void Channel::look(int other, int64_t now) {
  Peer& peer = peers_[static_cast<size_t>(other)];
  const bool open = read_signs(other);
  std::vector<std::byte>& unread = peer.unread;
  if (!unread.empty()) peer.heard_ns = now;
  while (!unread.empty()) {
    const char kind = static_cast<char>(unread.front());
    if (kind == kEnds) {
      const std::lock_guard lock(mutex_);
      peer.signs = {};
      return unread.clear();
    }
    if (kind == kFails) {
      uint32_t count = 0;
      if (unread.size() < 1 + sizeof count) break;
      std::memcpy(&count, unread.data() + 1, sizeof count);
      count = std::min(count, kMostWords);
      if (unread.size() < 1 + sizeof count + count && open) break;
      const size_t there = std::min<size_t>(count, unread.size() - 1 - sizeof count);
      const std::string why(reinterpret_cast<const char*>(unread.data()) + 1 + sizeof count, there);
      // Rank 0 passes on what it hears, with the name.
      return lose(rank() == 0 ? fmt::format("{}: {}", name(other), why) : why, rank() == 0);
    }
    unread.erase(unread.begin());
  }
  if (!open) return lose(name(other) + " has ended", rank() == 0);
  if (now - peer.heard_ns > kSilence)
    lose(fmt::format("{} gave no sign for {} s", name(other), kSilence / kSecond), rank() == 0);
}

void Channel::watch() {
  int64_t signed_ns = 0, looked_ns = now_ns();
  while (!over_ && !lost_) {
    if (const int64_t now = now_ns(); now - signed_ns >= kSecond) {
      sign_to_all(kAlive, "");
      signed_ns = now;
    }
    std::vector<pollfd> list{{wake_, POLLIN, 0}};
    for (int other = 0; other < ranks(); ++other) {
      const Socket& signs = peers_[static_cast<size_t>(other)].signs;
      if (is_peer(other) && !signs.empty()) list.push_back({signs.fd(), POLLIN, 0});
    }
    ::poll(list.data(), list.size(), 250);
    const int64_t now = now_ns();
    // Who was stopped itself for a while has heard nobody.
    if (now - looked_ns > 2 * kSecond) {
      for (Peer& peer : peers_) peer.heard_ns = now;
    }
    looked_ns = now;
    for (int other = 0; other < ranks() && !lost_; ++other) {
      if (is_peer(other) && !peers_[static_cast<size_t>(other)].signs.empty()) look(other, now);
    }
  }
}

}  // namespace sluice::backend
