#include "backend/cuda/host/row_copies.h"

#include <bit>
#include <cstdlib>
#include <vector>

#include "backend/cuda/host/cuda_check.h"
#include "base/check.h"

namespace sluice::backend::cuda {
namespace {

/// Where the numbers of a view lie, in elements from its first one.
std::vector<size_t> places_in(const Rows<float>& view, int64_t rows) {
  std::vector<size_t> places;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < view.heads; ++h)
      for (int64_t c = 0; c < view.columns; ++c)
        places.push_back(static_cast<size_t>(r * view.row_stride + h * view.head_stride + c));
  return places;
}

/// On the stream that steps run on: a copy from pageable memory that is not may end after cudaMemcpy has
/// returned, and a step that begins meanwhile would read what was there before.
void copy(void* to, const void* from, size_t words, cudaMemcpyKind kind, const Stream& stream) {
  check(cudaMemcpyAsync(to, from, words * sizeof(uint32_t), kind, stream));
  stream.wait();
}

std::vector<uint32_t> words_of(const Rows<float>& view, const std::vector<size_t>& places,
                               const Stream& stream) {
  std::vector<uint32_t> words(places.back() + 1);
  copy(words.data(), view.data, words.size(), cudaMemcpyDeviceToHost, stream);
  return words;
}

}  // namespace

void copy_rows(const Rows<float>& from, const Rows<float>& to,
               std::span<const program::Executable::RowCopy> rows, cudaStream_t stream) {
  CHECK(from.row_stride == to.row_stride && from.row_stride == from.columns, "rows with gaps");
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    const auto [begin, at] = rows[first];
    // Neighbours together, but a copy within one activation must not overlap itself.
    const auto most = static_cast<size_t>(from.data == to.data ? std::abs(begin - at) : std::ssize(rows));
    for (end = first + 1; end < rows.size() && end - first < most; ++end) {
      const auto further = static_cast<int64_t>(end - first);
      if (rows[end].from != begin + further || rows[end].to != at + further) break;
    }
    const size_t bytes = (end - first) * static_cast<size_t>(from.row_stride) * sizeof(float);
    check(cudaMemcpyAsync(to(at), from(begin), bytes, cudaMemcpyDeviceToDevice, stream));
  }
}

void read_numbers(const Rows<float>& view, int64_t rows, bool ints, std::span<float> values,
                  const Stream& stream) {
  const std::vector<size_t> places = places_in(view, rows);
  const std::vector<uint32_t> words = words_of(view, places, stream);
  for (size_t i = 0; i < places.size(); ++i) {
    const uint32_t word = words[places[i]];
    values[i] = ints ? static_cast<float>(static_cast<int32_t>(word)) : std::bit_cast<float>(word);
  }
}

void write_numbers(const Rows<float>& view, int64_t rows, bool ints, std::span<const float> values,
                   const Stream& stream) {
  const std::vector<size_t> places = places_in(view, rows);
  std::vector<uint32_t> words = words_of(view, places, stream);
  for (size_t i = 0; i < places.size(); ++i)
    words[places[i]] =
        ints ? static_cast<uint32_t>(static_cast<int32_t>(values[i])) : std::bit_cast<uint32_t>(values[i]);
  copy(view.data, words.data(), words.size(), cudaMemcpyHostToDevice, stream);
}

}  // namespace sluice::backend::cuda
