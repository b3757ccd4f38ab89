// What sequences keep, on its way between a device's caches and the host's memory: a page of all paged caches
// together, or a slot of all states. The bytes of a page are those of the caches in the order of
// program().caches(), [layers][kPageRows] rows of each; of a state, [layers][rows][columns].
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "program/program.h"

namespace sluice::program {

enum class Kept : uint8_t { Page, State };

/// Names a copy that has begun. Copies end in the order in which they began.
enum class CopyTicket : uint64_t {};

class PageCopier {
 public:
  virtual ~PageCopier() = default;
  /// Bytes of a page, or of a slot of states; 0: the program has none.
  virtual int64_t bytes(Kept what) const = 0;
  /// How the bytes hold numbers, and whose kernels computed them: what was read of a cache may be written to
  /// one of the same model and format.
  virtual std::string format() const = 0;
  /// Memory from and to which copies are quick, for as long as somebody has it. From any thread. Throws Error
  /// or std::bad_alloc.
  virtual std::shared_ptr<std::byte[]> memory(int64_t bytes) const = 0;
  /// Begin to copy to or from the host's memory, which stays as it is until the copy has ended, behind steps
  /// that were submitted. None in flight writes what is read; steps that need what is written wait for it.
  virtual CopyTicket begin_read(Kept what, int32_t index, std::byte* to) = 0;
  virtual CopyTicket begin_write(Kept what, int32_t index, const std::byte* from) = 0;
  virtual bool ended(CopyTicket copy) = 0;
  virtual void wait(CopyTicket copy) = 0;
};

/// The same of caches that lie in the host's memory: a copy has ended when it has begun.
class HostCopier : public PageCopier {
 public:
  using Visit = std::function<void(std::span<std::byte>)>;
  /// Visits the pieces of a page or slot in their order.
  using Pieces = std::function<void(Kept what, int32_t index, const Visit& visit)>;
  HostCopier(std::string format, Pieces pieces);

  int64_t bytes(Kept what) const override { return what == Kept::Page ? page_bytes_ : state_bytes_; }
  std::string format() const override { return format_; }
  std::shared_ptr<std::byte[]> memory(int64_t bytes) const override;
  CopyTicket begin_read(Kept what, int32_t index, std::byte* to) override;
  CopyTicket begin_write(Kept what, int32_t index, const std::byte* from) override;
  bool ended(CopyTicket) override { return true; }
  void wait(CopyTicket) override {}

 private:
  std::string format_;
  Pieces pieces_;
  int64_t page_bytes_ = 0, state_bytes_ = 0;
  uint64_t begun_ = 0;
};

/// The shapes of a program's caches and the types of their rows, as part of a format.
std::string cache_shapes(const Program& program);

}  // namespace sluice::program
