#include "cli/saved_logits.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/perplexity.h"

namespace sluice::cli {
namespace {

struct Header {
  char magic[8];
  uint32_t version, vocabulary;
  int64_t length, stride, tokens, rows;
};
static_assert(sizeof(Header) == 48);

constexpr char kMagic[] = "SLLOGITS";

int64_t scored_rows(int64_t tokens, Cut cut) {
  int64_t rows = 0;
  for (const engine::Window& window : engine::windows_of(tokens, cut.length, cut.stride))
    rows += window.end - window.first_scored;
  return rows;
}

}  // namespace

SavedLogits::SavedLogits(const std::string& path) : file_(path) {
  const auto bytes = file_.bytes();
  Header header{};
  std::memcpy(&header, bytes.data(), std::min(sizeof header, bytes.size()));
  if (bytes.size() < sizeof header || std::memcmp(header.magic, kMagic, sizeof header.magic) != 0) {
    fail("{}: no file of saved logits", path);
  }
  if (header.version != 1) fail("{}: version {}, expected 1", path, header.version);
  // Every number is bounded by the file's size before it is multiplied.
  const auto most = static_cast<int64_t>(bytes.size() / 4);
  if (header.tokens < 2 || header.tokens > most || header.rows < 1 || header.rows > most ||
      header.vocabulary < 1 || header.vocabulary > most || header.length < 2 || header.length > (1 << 30) ||
      header.stride < 1 || header.stride > header.length) {
    fail("{}: the header makes no sense", path);
  }
  cut_ = {header.length, header.stride};
  const int64_t before = static_cast<int64_t>(sizeof header) + 4 * header.tokens;
  const bool whole = header.rows <= most / header.vocabulary &&
                     before + 4 * header.rows * header.vocabulary == static_cast<int64_t>(bytes.size());
  if (!whole || header.rows != scored_rows(header.tokens, cut_)) {
    fail("{}: {} bytes do not hold {} rows of {} logits for {} tokens", path, bytes.size(), header.rows,
         header.vocabulary, header.tokens);
  }
  vocabulary_ = header.vocabulary;
  rows_ = header.rows;
  tokens_.resize(static_cast<size_t>(header.tokens));
  std::memcpy(tokens_.data(), bytes.data() + sizeof header, 4 * tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= vocabulary_)
      fail("{}: token {} is {}, expected 0 to {}", path, i, tokens_[i], vocabulary_ - 1);
  }
  logits_ = reinterpret_cast<const float*>(bytes.data() + sizeof header + 4 * tokens_.size());
}

std::span<const float> SavedLogits::row(int64_t index) const {
  return {logits_ + index * vocabulary_, static_cast<size_t>(vocabulary_)};
}

LogitsWriter::LogitsWriter(const std::string& path, int64_t vocabulary, Cut cut,
                           std::span<const int32_t> tokens, int64_t rows)
    : file_(path) {
  Header header{{},         1,          static_cast<uint32_t>(vocabulary),
                cut.length, cut.stride, static_cast<int64_t>(tokens.size()),
                rows};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  file_.write(std::as_bytes(std::span(&header, 1)));
  file_.write(std::as_bytes(tokens));
}

}  // namespace sluice::cli
