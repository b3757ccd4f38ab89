#include "cli/rank_fit.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace sluice::cli {
namespace {

using backend::Channel;
using backend::Frame;
using backend::Packet;
using backend::PacketReader;

void add(Packet& packet, const Fit& fit) {
  packet.add(fit.share.bytes).add(fit.share.stream_rows).add(fit.share.cache_mixtures);
  packet.add(fit.context).add(fit.outputs).add(fit.rows).add(int64_t{fit.warm});
}

Fit read_fit(PacketReader& reader) {
  Fit fit;
  fit.share.bytes = reader.number(), fit.share.stream_rows = reader.number();
  fit.share.cache_mixtures = reader.number();
  fit.context = reader.number(), fit.outputs = reader.number(), fit.rows = reader.number();
  fit.warm = reader.number() != 0;
  return fit;
}

void add(Packet& packet, const Fitted& fitted) {
  packet.add(static_cast<int64_t>(fitted.mixtures)).add(static_cast<int64_t>(fitted.all_mixtures));
  packet.add(fitted.bytes).add(fitted.moved_bytes).add(fitted.stream_rows).add(fitted.rows);
  packet.add(fitted.slot_bytes).add(fitted.slots);
}

Fitted read_fitted(PacketReader& reader) {
  Fitted fitted;
  fitted.mixtures = static_cast<size_t>(reader.number());
  fitted.all_mixtures = static_cast<size_t>(reader.number());
  fitted.bytes = reader.number(), fitted.moved_bytes = reader.number();
  fitted.stream_rows = reader.number(), fitted.rows = reader.number();
  fitted.slot_bytes = reader.number(), fitted.slots = reader.number();
  return fitted;
}

/// What a rank found, or why it found nothing.
Packet found(const Fit& fit, const std::function<Fitted(const Fit&)>& fit_own) {
  Packet packet;
  try {
    const Fitted fitted = fit_own(fit);
    add(packet.add(std::string_view()), fitted);
  } catch (const Error& error) {
    packet.clear();
    packet.add(error.what());
  }
  return packet;
}

Fitted read_found(const std::string& rank, std::span<const std::byte> packet) {
  PacketReader reader(packet);
  if (const std::string why = reader.text(); !why.empty()) fail("{}: {}", rank, why);
  return read_fitted(reader);
}

std::vector<std::byte> from_first(Channel& channel) {
  backend::Received received = channel.receive();
  if (received.kind != Frame::Values) fail("rank 0 has ended");
  return std::move(received.data);
}

}  // namespace

bool RankFits::shared() const {
  return asked.share.bytes > 0 || std::ranges::any_of(by_rank, &Fitted::mixtures);
}

RankFits fit_ranks(Channel& channel, const Fit& fit, const std::function<Fitted(const Fit&)>& fit_own) {
  RankFits fits{fit};
  Packet packet;
  if (channel.rank() == 0) {
    add(packet, fit);
    channel.send(Frame::Values, packet);
    packet.clear();
    fits.by_rank.push_back(read_found(channel.name(0), found(fit, fit_own).data()));
    for (int other = 1; other < channel.ranks(); ++other)
      fits.by_rank.push_back(read_found(channel.name(other), channel.receive_from(other).data));
    for (const Fitted& one : fits.by_rank) add(packet, one);
    channel.send(Frame::Values, packet);
    return fits;
  }
  const std::vector<std::byte> asked = from_first(channel);
  PacketReader reader(asked);
  fits.asked = read_fit(reader);
  channel.send_to(0, Frame::Values, found(fits.asked, fit_own).data());
  const std::vector<std::byte> all = from_first(channel);
  PacketReader list(all);
  for (int rank = 0; rank < channel.ranks(); ++rank) fits.by_rank.push_back(read_fitted(list));
  return fits;
}

}  // namespace sluice::cli
