#include "backend/ranks/kept.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace sluice::backend {

using namespace program;

KeptHere kept_by(Executable* executable) {
  if (executable == nullptr) return {};
  const PageCopier* const copier = executable->copier();
  if (copier == nullptr) return {.copied = executable->program().caches().empty()};
  return {true, copier->bytes(Kept::Page), copier->bytes(Kept::State), copier->format()};
}

void add_kept(Packet& packet, const KeptHere& kept) {
  packet.add(int64_t{kept.copied}).add(kept.page_bytes).add(kept.state_bytes).add(kept.format);
}

KeptHere read_kept(PacketReader& reader) {
  KeptHere kept;
  kept.copied = reader.number() != 0;
  kept.page_bytes = reader.number(), kept.state_bytes = reader.number();
  kept.format = reader.text();
  return kept;
}

// Grouped attention is cut by its heads of keys and values.
bool keeps_the_same(const Program& cut, Deal deal) {
  return deal == Deal::Parts && std::ranges::none_of(cut.ops(), [](const Op& op) {
           return std::holds_alternative<Attend>(op.args) || std::holds_alternative<GqaAttend>(op.args);
         });
}

RanksCopier::RanksCopier(Channel& channel, int64_t number, PageCopier* own, std::vector<KeptHere> ranks,
                         bool same)
    : channel_(channel), number_(number), own_(own), ranks_(std::move(ranks)), same_(same) {}

int64_t RanksCopier::bytes(Kept what) const {
  if (same_) return ranks_[0].bytes(what);
  int64_t bytes = 0;
  for (const KeptHere& rank : ranks_) bytes += rank.bytes(what);
  return bytes;
}

std::string RanksCopier::format() const {
  std::string text = fmt::format("{} ranks", ranks_.size());
  for (const KeptHere& rank : ranks_) text += fmt::format("; {}", rank.format);
  return text;
}

std::shared_ptr<std::byte[]> RanksCopier::memory(int64_t bytes) const {
  return own_ != nullptr ? own_->memory(bytes)
                         : std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

Packet RanksCopier::asked(Kept what, int32_t index) const {
  return Packet().add(number_).add(static_cast<int64_t>(what)).add(int64_t{index});
}

CopyTicket RanksCopier::begin_read(Kept what, int32_t index, std::byte* to) {
  const Packet packet = asked(what, index);
  for (int rank = 1; rank < channel_.ranks() && !same_; ++rank) {
    if (bytes_at(rank, what) > 0) channel_.send_to(rank, Frame::ReadKept, packet.data());
  }
  if (own_ != nullptr && bytes_at(0, what) > 0) own_->wait(own_->begin_read(what, index, to));
  for (int rank = 1; rank < channel_.ranks() && !same_; ++rank) {
    to += bytes_at(rank - 1, what);
    if (bytes_at(rank, what) == 0) continue;
    const Received received = channel_.receive_from(rank);
    if (received.data.size() != bytes_at(rank, what))
      fail("{} sent {} bytes of its cache, expected {}", channel_.name(rank), received.data.size(),
           bytes_at(rank, what));
    std::memcpy(to, received.data.data(), received.data.size());
  }
  return {};
}

CopyTicket RanksCopier::begin_write(Kept what, int32_t index, const std::byte* from) {
  const std::byte* at = from;
  for (int rank = 1; rank < channel_.ranks(); ++rank) {
    if (!same_) at += bytes_at(rank - 1, what);
    if (bytes_at(rank, what) == 0) continue;
    const Packet packet = asked(what, index).add_list(std::span(at, bytes_at(rank, what)));
    channel_.send_to(rank, Frame::WriteKept, packet.data());
  }
  if (own_ != nullptr && bytes_at(0, what) > 0) own_->wait(own_->begin_write(what, index, from));
  return {};
}

namespace {

PageCopier& copier_of(Executable& executable) {
  PageCopier* const copier = executable.copier();
  if (copier == nullptr) fail("rank 0 asks for pages that nothing copies here");
  return *copier;
}

Kept what_of(PacketReader& reader) { return reader.number() == 0 ? Kept::Page : Kept::State; }

}  // namespace

void send_kept(Channel& channel, Executable& executable, PacketReader& asked) {
  PageCopier& copier = copier_of(executable);
  const Kept what = what_of(asked);
  const auto index = static_cast<int32_t>(asked.number());
  std::vector<std::byte> bytes(static_cast<size_t>(copier.bytes(what)));
  copier.wait(copier.begin_read(what, index, bytes.data()));
  channel.send_to(0, Frame::Values, bytes);
}

void write_kept(Executable& executable, PacketReader& given) {
  PageCopier& copier = copier_of(executable);
  const Kept what = what_of(given);
  const auto index = static_cast<int32_t>(given.number());
  std::vector<std::byte> bytes;
  given.list(bytes);
  if (std::ssize(bytes) != copier.bytes(what))
    fail("rank 0 sent {} bytes of a cache, expected {}", bytes.size(), copier.bytes(what));
  copier.wait(copier.begin_write(what, index, bytes.data()));
}

}  // namespace sluice::backend
