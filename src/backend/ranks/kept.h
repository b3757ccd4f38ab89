// Pages and states of all ranks, as rank 0's engine copies them to the host's memory and back: one behind the
// other, each rank's own. Where all ranks keep the same, as latent attention cut by heads does, rank 0's
// alone are read, and written at every rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/ranks/channel.h"
#include "backend/ranks/messages.h"
#include "program/executable.h"

namespace sluice::backend {

/// What a rank tells of its copier once it has compiled.
struct KeptHere {
  bool copied = true;  ///< false: it has caches, and nothing copies them
  int64_t page_bytes = 0, state_bytes = 0;
  std::string format;

  int64_t bytes(program::Kept what) const { return what == program::Kept::Page ? page_bytes : state_bytes; }
};
/// Null: a rank that has nothing to do.
KeptHere kept_by(program::Executable* executable);
void add_kept(Packet& packet, const KeptHere& kept);
KeptHere read_kept(PacketReader& reader);

/// Whether each rank's caches hold what rank 0's do.
bool keeps_the_same(const program::Program& cut, Deal deal);

class RanksCopier : public program::PageCopier {
 public:
  /// `own` may be null where rank 0 keeps nothing. `ranks`: by rank, of the executable of this number.
  RanksCopier(Channel& channel, int64_t number, program::PageCopier* own, std::vector<KeptHere> ranks,
              bool same);
  int64_t bytes(program::Kept what) const override;
  std::string format() const override;
  std::shared_ptr<std::byte[]> memory(int64_t bytes) const override;
  program::CopyTicket begin_read(program::Kept what, int32_t index, std::byte* to) override;
  program::CopyTicket begin_write(program::Kept what, int32_t index, const std::byte* from) override;
  bool ended(program::CopyTicket) override { return true; }
  void wait(program::CopyTicket) override {}

 private:
  /// What each rank has of it.
  size_t bytes_at(int rank, program::Kept what) const {
    return static_cast<size_t>(ranks_[static_cast<size_t>(rank)].bytes(what));
  }
  Packet asked(program::Kept what, int32_t index) const;

  Channel& channel_;
  int64_t number_;
  program::PageCopier* own_;
  std::vector<KeptHere> ranks_;
  bool same_;
};

/// Another rank's side of it: what it is asked for, it sends; what it is given, it writes.
void send_kept(Channel& channel, program::Executable& executable, PacketReader& asked);
void write_kept(program::Executable& executable, PacketReader& given);

}  // namespace sluice::backend
