// A model's weights, packed once for all (`sluice pack`): later starts map the file and are ready at once,
// and all processes that run it share its pages.
//
// The file, in parts that begin at multiples of 64 KB: a header with its checksum, a list of segments, and a
// checksum of every MiB of what follows; the
// segments, which are what is left of the GGUF file when the weights that products read are taken out of it
// (its metadata, norms, a token table that nothing else reads); the panels, as PackedWeights lays them out.
// The segments are mapped to where they were in the GGUF file, so whoever reads that file finds everything in
// its place, but for the packed weights: they are not there, and must not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "program/backend.h"

namespace sluice::backend::cpu {

/// The GGUF file that a pack file is made of, mapped.
struct PackSource {
  std::span<const std::byte> bytes;
  int64_t head_bytes = 0;  ///< of metadata and table: where the first tensor's bytes begin
  int64_t modified_ns = 0;
};

/// What the header says of the GGUF file: the same file makes the same one.
struct PackOrigin {
  uint64_t bytes = 0, head_bytes = 0, head_hash = 0;
  int64_t modified_ns = 0;
  bool operator==(const PackOrigin&) const = default;
};
PackOrigin origin_of(const PackSource& source);

class PackFile {
 public:
  /// Whether a file begins as a pack file does; false when it cannot be read.
  static bool is_one(const std::string& path);

  /// Maps a file and checks all of it but the panels, of which a model may read few at first. Throws Error
  /// "PATH: ..." when it is damaged, cut short, or none.
  explicit PackFile(const std::string& path);
  PackFile(const PackFile&) = delete;
  PackFile& operator=(const PackFile&) = delete;
  ~PackFile();

  /// Checks the panels too. Throws Error "PATH: is damaged (bytes A to B) ...".
  void verify(Team& team) const { check(sums_.size(), &team); }

  const std::string& path() const { return path_; }
  const PackOrigin& origin() const { return origin_; }
  /// The GGUF file's bytes, but for the packed weights', which are zeroes.
  std::span<const std::byte> original() const { return {original_, origin_.bytes}; }
  /// The panels. Throws Error when they are laid out in another way, or for another tier's kernels.
  const std::byte* panels(const std::string& layout, int64_t bytes) const;

 private:
  void check(size_t pieces, Team* team) const;
  void release();

  std::string path_;
  int fd_ = -1;
  std::vector<uint64_t> sums_;  ///< of the pieces of all that follows the header
  uint64_t data_at_ = 0, file_bytes_ = 0;
  PackOrigin origin_;
  uint64_t layout_hash_ = 0, panels_bytes_ = 0;
  std::byte* original_ = nullptr;
  size_t reserved_bytes_ = 0;
  const std::byte* panels_ = nullptr;
};

/// A stretch of the GGUF file that is kept, in bytes: both multiples of 64 KB.
struct PackSegment {
  uint64_t first, bytes;
};

/// What a program's executable reads in the file's order, and the file's head.
std::vector<PackSegment> kept_segments(const program::Program& program, const program::WeightBytes& weights,
                                       const PackSource& source);

/// Writes a pack file of a program that is legal for this backend; it appears under its name when it is
/// whole. False: it is there already, made of the same file. progress as in PackedWeights::load. Throws Error
/// "PATH: ...".
bool write_pack_file(const program::Program& program, const program::WeightBytes& weights,
                     const PackSource& source, const std::string& path, Team& team,
                     const program::Progress& progress);

}  // namespace sluice::backend::cpu
