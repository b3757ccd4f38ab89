// Pages of the caches on their way from and to the host's memory, on a stream of their own, beside the steps.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <string>
#include <vector>

#include "backend/cuda/host/memory.h"
#include "program/page_copier.h"

namespace sluice::backend::cuda {

class PageCopies : public program::PageCopier {
 public:
  /// Of caches on the current device, whose steps run on a stream.
  PageCopies(const Memory& memory, std::string format, cudaStream_t steps);
  ~PageCopies() override;
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;

  int64_t bytes(program::Kept what) const override;
  std::string format() const override { return format_; }
  std::shared_ptr<std::byte[]> memory(int64_t bytes) const override;
  program::CopyTicket begin_read(program::Kept what, int32_t index, std::byte* to) override;
  program::CopyTicket begin_write(program::Kept what, int32_t index, const std::byte* from) override;
  bool ended(program::CopyTicket copy) override;
  void wait(program::CopyTicket copy) override;

 private:
  /// A cache, all of whose page or slot lies in one piece.
  struct Piece {
    program::Kept what;
    char* data;
    int64_t bytes;
  };
  program::CopyTicket mark();
  void forget_ended();

  int device_;
  std::string format_;
  std::vector<Piece> pieces_;
  cudaStream_t steps_, stream_ = nullptr;
  cudaEvent_t behind_ = nullptr;    // the steps that were submitted
  std::deque<cudaEvent_t> marks_;   // behind each copy that may not have ended
  std::vector<cudaEvent_t> spare_;  // to be used again
  uint64_t begun_ = 0;
};

}  // namespace sluice::backend::cuda
