#include "program/page_copier.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace sluice::program {

HostCopier::HostCopier(std::string format, Pieces pieces)
    : format_(std::move(format)), pieces_(std::move(pieces)) {
  const auto add_to = [](int64_t& bytes) {
    return [&bytes](std::span<std::byte> piece) { bytes += std::ssize(piece); };
  };
  pieces_(Kept::Page, 0, add_to(page_bytes_));
  pieces_(Kept::State, 0, add_to(state_bytes_));
}

std::shared_ptr<std::byte[]> HostCopier::memory(int64_t bytes) const {
  return std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

CopyTicket HostCopier::begin_read(Kept what, int32_t index, std::byte* to) {
  pieces_(what, index, [&to](std::span<std::byte> piece) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  });
  return CopyTicket{++begun_};
}

CopyTicket HostCopier::begin_write(Kept what, int32_t index, const std::byte* from) {
  pieces_(what, index, [&from](std::span<std::byte> piece) {
    std::memcpy(piece.data(), from, piece.size());
    from += piece.size();
  });
  return CopyTicket{++begun_};
}

std::string cache_shapes(const Program& program) {
  std::string text;
  for (const TensorId id : program.caches()) {
    const Tensor& cache = program[id];
    text += fmt::format("{}{} {} {}x{}x{}", text.empty() ? "" : ", ", cache.name,
                        quant::type_info(cache.type).name, cache.shape[0], cache.shape[1], cache.shape[2]);
    if (cache.exact > 0) text += fmt::format(" ({} exact)", cache.exact);
  }
  return text;
}

}  // namespace sluice::program
