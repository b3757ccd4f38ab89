#include "backend/cpu/pack_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel.h"
#include "backend/cpu/packed_weights.h"
#include "base/check.h"
#include "base/error.h"
#include "base/mapping_guard.h"
#include "base/unfinished_file.h"
#include "program/op_info.h"

namespace sluice::backend::cpu {
namespace {

constexpr char kMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'P', 'K'};
constexpr uint32_t kVersion = 3;
constexpr uint64_t kPart = 64 << 10;                // every part begins at a multiple: of all page sizes
constexpr uint64_t kPiece = 1 << 20;                // that a checksum is of
constexpr uint64_t kMostSegments = 1 << 14;         // a system maps some ten thousands
constexpr uint64_t kMostBytes = uint64_t{1} << 46;  // sums of a few such numbers do not overflow

/// Numbers are little-endian, as everywhere in this file.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t segments;  // that follow the header
  uint64_t checksum;  // of header and segments up to the next part, without this field
  uint64_t original_bytes, head_bytes, head_hash;
  int64_t modified_ns;
  uint64_t panels_bytes, layout_hash;
  uint64_t sums;  // that follow the segments
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 80 && sizeof(PackSegment) == 16);

uint64_t whole_parts(uint64_t bytes) { return (bytes + kPart - 1) / kPart * kPart; }
uint64_t pieces_of(uint64_t bytes) { return (bytes + kPiece - 1) / kPiece; }
uint64_t header_bytes(uint64_t segments, uint64_t sums) {
  return whole_parts(sizeof(Header) + segments * sizeof(PackSegment) + sums * sizeof(uint64_t));
}

/// FNV-1a, going on from `hash`: tells damage from what was written, not a forger's file.
uint64_t hash_of(std::span<const std::byte> bytes, uint64_t hash = 0xCBF29CE484222325u) {
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3u;
  return hash;
}
uint64_t hash_of(const std::string& text) { return hash_of(std::as_bytes(std::span(text))); }

/// Of a header's part but for the checksum itself.
uint64_t checksum_of(std::span<const std::byte> part) {
  constexpr size_t kAt = offsetof(Header, checksum);
  return hash_of(part.subspan(kAt + sizeof(uint64_t)), hash_of(part.first(kAt)));
}

/// Of a piece, at the speed of memory: every word changes its lane, which stays changed.
uint64_t sum_of(std::span<const std::byte> bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + sizeof lanes <= bytes.size(); at += sizeof lanes) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = std::rotl(lanes[i] ^ words[i], 29) * kFactor;
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) sum = (std::rotl(sum, 29) ^ lane) * kFactor;
  return hash_of(bytes.subspan(at), sum);
}

struct Descriptor {
  int fd;
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void fail_with(const std::string& path, int error) {
  fail("{}: {}", path, std::strerror(error));
}

/// Reads what is there, up to the buffer's size. Returns the bytes read.
size_t read_at(int fd, std::span<std::byte> into, uint64_t offset) {
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void write_at(int fd, std::span<const std::byte> bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail_with(path, wrote < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
}

/// The sum of every piece behind the header, as the file is.
std::vector<uint64_t> sums_of_file(int fd, uint64_t data_at, uint64_t file_bytes, size_t pieces, Team* team,
                                   const std::string& path) {
  std::vector<uint64_t> sums(pieces);
  std::atomic<bool> lost = false;
  const int workers = team == nullptr ? 1 : team->size();
  const auto work = [&](int worker) {
    std::vector<std::byte> piece(kPiece);
    for (auto i = static_cast<size_t>(worker); i < pieces; i += static_cast<size_t>(workers)) {
      const uint64_t at = data_at + i * kPiece;
      const auto bytes = std::span(piece).first(std::min(kPiece, file_bytes - at));
      if (read_at(fd, bytes, at) != bytes.size()) lost = true;
      sums[i] = sum_of(bytes);
    }
  };
  team == nullptr ? work(0) : team->run(work);
  if (lost) fail("{}: cannot be read to its end", path);
  return sums;
}

/// What a header's part holds.
struct Head {
  Header header;
  std::vector<PackSegment> segments;
  std::vector<uint64_t> sums;

  uint64_t bytes() const { return header_bytes(segments.size(), sums.size()); }
};

/// The checked first part of a pack file: after this its numbers make sense together and fit the file.
Head read_header(int fd, uint64_t file_bytes, const std::string& path) {
  Header header;
  if (read_at(fd, std::as_writable_bytes(std::span(&header, 1)), 0) != sizeof header ||
      std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    fail("{}: is not a file of sluice pack", path);
  }
  if (header.version != kVersion) {
    fail("{}: was packed in version {} of the format, expected {}; pack the model again", path,
         header.version, kVersion);
  }
  const auto damaged = [&](const char* what) {
    fail("{}: is damaged ({}); pack the model again", path, what);
  };
  if (header.segments == 0 || header.segments > kMostSegments) damaged("number of segments");
  if (header.sums > pieces_of(file_bytes)) damaged("number of checksums");
  std::vector<std::byte> part(header_bytes(header.segments, header.sums));
  if (read_at(fd, part, 0) != part.size()) damaged("cut short");
  if (checksum_of(part) != header.checksum) damaged("the header's checksum");
  std::vector<PackSegment> segments(header.segments);
  std::vector<uint64_t> sums(header.sums);
  const size_t segment_bytes = segments.size() * sizeof(PackSegment);
  std::memcpy(segments.data(), part.data() + sizeof header, segment_bytes);
  if (!sums.empty())
    std::memcpy(sums.data(), part.data() + sizeof header + segment_bytes, sums.size() * sizeof(uint64_t));

  for (const uint64_t bytes : {header.original_bytes, header.panels_bytes}) {
    if (bytes == 0 || bytes > kMostBytes) damaged("sizes");
  }
  uint64_t at = 0, kept = 0;
  for (const PackSegment& s : segments) {
    if (s.first % kPart != 0 || s.bytes % kPart != 0 || s.bytes == 0 || s.bytes > kMostBytes ||
        s.first < at || s.first > kMostBytes || s.first + s.bytes > whole_parts(header.original_bytes)) {
      damaged("segments");
    }
    at = s.first + s.bytes;
    kept += s.bytes;
  }
  if (header.head_bytes == 0 || segments[0].first != 0 || header.head_bytes > segments[0].bytes)
    damaged("head");
  if (part.size() + kept + header.panels_bytes != file_bytes) damaged("the file's size");
  if (sums.size() != pieces_of(kept + header.panels_bytes)) damaged("number of checksums");
  return {header, std::move(segments), std::move(sums)};
}

}  // namespace

PackOrigin origin_of(const PackSource& source) {
  const auto head = static_cast<size_t>(source.head_bytes);
  return {source.bytes.size(), head, hash_of(source.bytes.first(head)), source.modified_ns};
}

bool PackFile::is_one(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char magic[sizeof kMagic];
  return file.fd >= 0 && read_at(file.fd, std::as_writable_bytes(std::span(magic)), 0) == sizeof magic &&
         std::memcmp(magic, kMagic, sizeof magic) == 0;
}

PackFile::PackFile(const std::string& path) : path_(path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) fail_with(path, errno);
  if (!S_ISREG(info.st_mode)) fail("{}: not a regular file", path);
  file_bytes_ = static_cast<uint64_t>(info.st_size);
  Head head = read_header(file.fd, file_bytes_, path);
  const Header& header = head.header;
  origin_ = {header.original_bytes, header.head_bytes, header.head_hash, header.modified_ns};
  layout_hash_ = header.layout_hash;
  panels_bytes_ = header.panels_bytes;

  // Zeroes, which take no memory, for all of the GGUF file, and over them the segments, each at its place.
  const auto map = [&](void* at, uint64_t bytes, int kind, int fd, uint64_t offset) {
    void* address = ::mmap(at, bytes, PROT_READ, kind, fd, static_cast<off_t>(offset));
    if (address == MAP_FAILED) fail("{}: cannot be mapped: {}", path, std::strerror(errno));
    return static_cast<std::byte*>(address);
  };
  reserved_bytes_ = whole_parts(header.original_bytes);
  original_ = map(nullptr, reserved_bytes_, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  try {
    data_at_ = head.bytes();
    uint64_t offset = data_at_;
    for (const PackSegment& s : head.segments) {
      map(original_ + s.first, s.bytes, MAP_SHARED | MAP_FIXED, file.fd, offset);
      offset += s.bytes;
    }
    guard_mapping({original_, reserved_bytes_}, path);
    panels_ = map(nullptr, panels_bytes_, MAP_SHARED, file.fd, offset);
    guard_mapping({panels_, panels_bytes_}, path);
    if (hash_of(original().first(header.head_bytes)) != header.head_hash)
      fail("{}: is damaged (the model's metadata); pack the model again", path);
    fd_ = std::exchange(file.fd, -1);
    sums_ = std::move(head.sums);
    check(pieces_of(offset - data_at_), nullptr);
  } catch (...) {
    release();
    throw;
  }
}

PackFile::~PackFile() { release(); }

void PackFile::check(size_t pieces, Team* team) const {
  const auto found = sums_of_file(fd_, data_at_, file_bytes_, pieces, team, path_);
  for (size_t i = 0; i < pieces; ++i) {
    const uint64_t at = data_at_ + i * kPiece;
    if (found[i] != sums_[i]) {
      fail("{}: is damaged (bytes {} to {}); pack the model again", path_, at,
           std::min(at + kPiece, file_bytes_) - 1);
    }
  }
}

void PackFile::release() {
  if (fd_ >= 0) ::close(fd_);
  if (panels_ != nullptr) {
    unguard_mapping(panels_);
    ::munmap(const_cast<std::byte*>(panels_), panels_bytes_);
  }
  unguard_mapping(original_);
  ::munmap(original_, reserved_bytes_);
}

const std::byte* PackFile::panels(const std::string& layout, int64_t bytes) const {
  if (layout_hash_ != hash_of(layout) || panels_bytes_ != static_cast<uint64_t>(bytes)) {
    fail("{}: was packed for another version of sluice or other kernels; pack the model again", path_);
  }
  return panels_;
}

std::vector<PackSegment> kept_segments(const program::Program& program, const program::WeightBytes& weights,
                                       const PackSource& source) {
  std::vector<PackSegment> list;
  const auto keep = [&](uint64_t begin, uint64_t bytes) {
    const uint64_t first = begin / kPart * kPart;
    list.push_back({first, whole_parts(begin + bytes) - first});
  };
  keep(0, static_cast<uint64_t>(source.head_bytes));
  std::set<program::TensorId> packed;
  for (const program::Op& op : program.ops()) {
    program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
      if (reads_panels(program, op, id)) packed.insert(id);
    });
  }
  for (const program::Op& op : program.ops()) {
    // Where a token table is multiplied too, its rows come out of the panels (WeightTable::decode_row).
    const bool is_table = std::holds_alternative<program::Embed>(op.args);
    program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
      if (program[id].kind != program::Kind::Weight || reads_panels(program, op, id)) return;
      if (is_table && packed.contains(id)) return;
      const auto bytes = weights[static_cast<size_t>(program.storage(id))];
      CHECK(bytes.data() >= source.bytes.data() &&
                bytes.data() + bytes.size() <= source.bytes.data() + source.bytes.size(),
            "{} lies outside of the file", program[id].name);
      keep(static_cast<uint64_t>(bytes.data() - source.bytes.data()), bytes.size());
    });
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PackSegment> joined;
  for (const PackSegment& next : list) {
    if (!joined.empty() && next.first <= joined.back().first + joined.back().bytes) {
      PackSegment& last = joined.back();
      last.bytes = std::max(last.bytes, next.first + next.bytes - last.first);
    } else {
      joined.push_back(next);
    }
  }
  return joined;
}

namespace {

/// A file under another name until it is whole, so that processes that have the old one mapped keep that.
class NewFile {
 public:
  NewFile(const std::string& path, uint64_t bytes)
      : path_(path),
        part_(path + ".part"),
        unfinished_(part_),
        file_(::open(part_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_.fd < 0) fail_with(part_, errno);
    // A page of a mapping that the disk has no room for would be a signal, not an error.
    if (const int error = ::posix_fallocate(file_.fd, 0, static_cast<off_t>(bytes)); error != 0) {
      ::unlink(part_.c_str());
      fail("{}: {} ({:.2f} GB)", path_, std::strerror(error), 1e-9 * static_cast<double>(bytes));
    }
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!whole_) ::unlink(part_.c_str());
  }
  int fd() const { return file_.fd; }
  void finish() {
    if (::fsync(file_.fd) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) fail_with(path_, errno);
    whole_ = true;
  }

 private:
  std::string path_, part_;
  UnfinishedFile unfinished_;
  Descriptor file_;
  bool whole_ = false;
};

/// Whether the file is there, undamaged, and would be made the same again.
bool is_current(const std::string& path, const PackOrigin& origin, const std::string& layout, int64_t bytes,
                Team& team) {
  if (!PackFile::is_one(path)) return false;
  try {
    const PackFile file(path);
    if (file.origin() != origin || file.panels(layout, bytes) == nullptr) return false;
    file.verify(team);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool write_pack_file(const program::Program& program, const program::WeightBytes& weights,
                     const PackSource& source, const std::string& path, Team& team,
                     const program::Progress& progress) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) fail("{}: not a regular file", path);
  const program::Source from{program, weights};
  const PackedWeights packed({&from, 1}, true);
  const auto segments = kept_segments(program, weights, source);
  if (segments.size() > kMostSegments) fail("{}: too many separate weights to pack", path);
  const PackOrigin origin = origin_of(source);
  if (is_current(path, origin, packed.layout(), packed.bytes(), team)) return false;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.segments = static_cast<uint32_t>(segments.size());
  header.original_bytes = origin.bytes;
  header.head_bytes = origin.head_bytes;
  header.head_hash = origin.head_hash;
  header.modified_ns = origin.modified_ns;
  header.panels_bytes = static_cast<uint64_t>(packed.bytes());
  header.layout_hash = hash_of(packed.layout());

  uint64_t kept = 0;
  for (const PackSegment& s : segments) kept += s.bytes;
  header.sums = pieces_of(kept + header.panels_bytes);
  const uint64_t data_at = header_bytes(segments.size(), header.sums), panels_at = data_at + kept;
  NewFile file(path, panels_at + header.panels_bytes);
  uint64_t at = data_at;
  for (const PackSegment& s : segments) {
    const uint64_t there = std::min<uint64_t>(s.bytes, source.bytes.size() - s.first);
    write_at(file.fd(), source.bytes.subspan(s.first, there), at, path);
    at += s.bytes;
  }
  void* address = ::mmap(nullptr, header.panels_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(),
                         static_cast<off_t>(panels_at));
  if (address == MAP_FAILED) fail("{}: cannot be mapped: {}", path, std::strerror(errno));
  packed.pack_into(static_cast<std::byte*>(address), team, progress);
  ::munmap(address, header.panels_bytes);

  const auto sums =
      sums_of_file(file.fd(), data_at, panels_at + header.panels_bytes, header.sums, &team, path);
  std::vector<std::byte> part(data_at);
  const size_t segment_bytes = segments.size() * sizeof(PackSegment);
  std::memcpy(part.data() + sizeof header, segments.data(), segment_bytes);
  std::memcpy(part.data() + sizeof header + segment_bytes, sums.data(), sums.size() * sizeof(uint64_t));
  std::memcpy(part.data(), &header, sizeof header);
  header.checksum = checksum_of(part);
  std::memcpy(part.data(), &header, sizeof header);
  write_at(file.fd(), part, 0, path);
  file.finish();
  return true;
}

}  // namespace sluice::backend::cpu
