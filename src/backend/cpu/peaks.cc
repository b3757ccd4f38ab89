// Measuring peaks: the best of several loops, several times each, all threads at once. Memory that is read is
// far larger than any cache, so that no cache answers for it.
#include "backend/cpu/peaks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/pages.h"
#include "backend/cpu/simd/peaks_loops.h"
#include "base/clock.h"
#include "base/cpu_info.h"
#include "base/memory_advice.h"
#include "base/threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sluice::backend::cpu {
namespace {

using program::Peaks;

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int kPasses = 3;
constexpr int64_t kArithmeticNs = 15'000'000;  // a pass, about

constexpr ReadPattern kPatterns[] = {ReadPattern::Plain, ReadPattern::Prefetched, ReadPattern::FarAhead,
                                     ReadPattern::FourStreams, ReadPattern::FourPrefetched};
constexpr const char* kPatternNames[] = {"plain loads", "loads prefetched 1 KB ahead",
                                         "loads prefetched 4 KB ahead", "loads in four streams",
                                         "loads in four streams prefetched 1 KB ahead"};

ReadLoop read_loop(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Avx512) return read_avx512;
  if (isa >= Isa::Avx2) return read_avx2;
#endif
  (void)isa;
  return read_generic;
}

/// A unit that multiplies: its loop, and the operations of a round.
struct PeakUnit {
  const char* name;
  Isa isa;          // the tier that it needs at least
  bool matrix;      // kernels multiply weights with it, when no quicker one is there
  bool (*there)();  // or null: wherever the tier is
  MultiplyLoop loop;
  double operations;  // a round
};

#if defined(__x86_64__)

/// CPUID leaf 7, subleaf 1, EAX bit 5.
bool has_avx512_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

// A tile instruction multiplies 16 rows by 16 columns, along 64 int8 or 32 bf16.
constexpr PeakUnit kUnits[] = {
    {"f32", Isa::Generic, true, nullptr, f32_generic, 2.0 * kChains * 4},
    {"f32 FMA AVX2", Isa::Avx2, true, nullptr, f32_avx2, 2.0 * kChains * 8},
    {"int4 x int8 AVX2", Isa::Avx2, true, nullptr, int4_avx2, 2.0 * kChains * 32},
    {"int8 AVX2", Isa::Avx2, true, nullptr, int8_avx2, 2.0 * kChains * 32},
    {"int8 VNNI AVX2", Isa::Avx2, true, has_avx_vnni, int8_avxvnni, 2.0 * kChains * 32},
    {"int16 AVX2", Isa::Avx2, false, nullptr, int16_avx2, 2.0 * kChains * 16},  // attention's
    {"f32 FMA AVX-512", Isa::Avx512, true, nullptr, f32_avx512, 2.0 * kChains * 16},
    {"bf16 AVX-512", Isa::Avx512, true, has_avx512_bf16, bf16_avx512, 2.0 * kChains * 32},
    {"int8 VNNI AVX-512", Isa::Avx512, true, nullptr, int8_avx512, 2.0 * kChains * 64},
    {"bf16 AMX", Isa::Amx, true, nullptr, bf16_amx, 2.0 * kTileChains * 16 * 16 * 32},
    // Weights have a scale every 32 columns, half a tile of int8: bf16 tiles are what kernels are held to.
    {"int8 AMX", Isa::Amx, false, nullptr, int8_amx, 2.0 * kTileChains * 16 * 16 * 64},
};

#elif defined(__aarch64__)

constexpr PeakUnit kUnits[] = {
    {"f32", Isa::Generic, true, nullptr, f32_generic, 2.0 * kChains * 4},
    {"f32 FMA NEON", Isa::Neon, true, nullptr, f32_neon, 2.0 * kChains * 4},
    {"int8 dot NEON", Isa::Neon, true, nullptr, int8_neon, 2.0 * kChains * 16},
    {"int8 I8MM", Isa::Neon, true, has_i8mm, int8_i8mm, 2.0 * kChains * 32},
};

#else

constexpr PeakUnit kUnits[] = {{"f32", Isa::Generic, true, nullptr, f32_generic, 2.0 * kChains * 4}};

#endif

/// The least time of several runs of the whole team, in nanoseconds.
template <typename Work>
double best_ns(Team& team, Work work) {
  int64_t best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t begin = now_ns();
    team.run(work);
    const int64_t ns = now_ns() - begin;
    if (pass == 0 || ns < best) best = ns;
  }
  return static_cast<double>(std::max<int64_t>(best, 1));
}

double unit_rate(Team& team, const PeakUnit& unit) {
  int64_t rounds = 1 << 14;
  while (true) {
    const double ns = best_ns(team, [&](int) { unit.loop(rounds); });
    if (ns >= 0.5 * static_cast<double>(kArithmeticNs)) {
      return unit.operations * static_cast<double>(rounds) * team.size() * 1e9 / ns;
    }
    rounds = ns < 1e5 ? rounds * 16 : static_cast<int64_t>(static_cast<double>(rounds * kArithmeticNs) / ns);
  }
}

/// Bytes to read: more than twice the last-level cache and at least a GiB, but no more than a quarter of the
/// memory that is there. SLUICE_PEAK_BYTES: so many, where nobody looks at the rate (tests).
int64_t read_bytes() {
  int64_t bytes = int64_t{1} << 30;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = std::max<int64_t>(bytes, 5 * ::sysconf(_SC_LEVEL3_CACHE_SIZE) / 2);
#endif
  if (const char* wanted = std::getenv("SLUICE_PEAK_BYTES")) bytes = std::strtoll(wanted, nullptr, 10);
  const int64_t available = available_memory_bytes();
  if (available > 0) bytes = std::min(bytes, available / 4);
  return std::max<int64_t>(bytes / kHugePage * kHugePage, kHugePage);
}

/// Memory of one size of pages, written once by the threads that will read it.
class ReadBuffer {
 public:
  ReadBuffer(Team& team, int64_t bytes, bool huge) : team_(team), bytes_(bytes), pages_(bytes + kHugePage) {
    const auto address = reinterpret_cast<uintptr_t>(pages_.data());
    data_ = pages_.data() + (kHugePage - static_cast<int64_t>(address % kHugePage));
    want_pages(data_, static_cast<size_t>(bytes_), huge ? PageSize::Huge : PageSize::Small);
    team_.run([&](int worker) {
      const Slice mine = part(worker);
      for (int64_t at = mine.first; at < mine.last; at += kReadMultiple) data_[at] = std::byte{1};
    });
  }

  int64_t bytes() const { return bytes_; }

  double bytes_per_second(ReadLoop loop, ReadPattern pattern) {
    const double ns = best_ns(team_, [&](int worker) { read(loop, pattern, part(worker)); });
    return static_cast<double>(bytes_) * 1e9 / ns;
  }

  /// Over one of `stretches` pieces of every worker's part, once.
  double ns_a_byte(ReadLoop loop, ReadPattern pattern, int64_t stretch, int64_t stretches) {
    std::atomic<int64_t> bytes = 0;
    team_.run([](int) {});  // who slept is awake when the clock starts
    const int64_t begin = now_ns();
    team_.run([&](int worker) {
      const Slice mine = part(worker);
      const Slice piece = slice_of(mine.last - mine.first, static_cast<int>(stretch),
                                   static_cast<int>(stretches), 4 * kReadMultiple);
      read(loop, pattern, {mine.first + piece.first, mine.first + piece.last});
      bytes += piece.last - piece.first;
    });
    return static_cast<double>(std::max<int64_t>(now_ns() - begin, 1)) /
           static_cast<double>(std::max<int64_t>(bytes, 1));
  }

 private:
  Slice part(int worker) const { return slice_of(bytes_, worker, team_.size(), 4 * kReadMultiple); }

  void read(ReadLoop loop, ReadPattern pattern, const Slice& slice) const {
    volatile uint64_t kept = loop(data_ + slice.first, slice.last - slice.first, pattern);
    (void)kept;
  }

  Team& team_;
  int64_t bytes_;
  Pages pages_;
  std::byte* data_;
};

struct ReadRate {
  double bytes_per_second = 0;
  ReadPattern pattern = ReadPattern::Plain;
  bool huge = false;
};

/// How the machine read fastest when its peaks were measured, by threads.
std::map<int, ReadRate>& best_reads() {
  static std::map<int, ReadRate> reads;
  return reads;
}

ReadRate best_read(Team& team, Isa isa) {
  ReadRate best;
  for (const bool huge : {false, true}) {
    ReadBuffer buffer(team, read_bytes(), huge);
    for (const ReadPattern pattern : kPatterns) {
      const double rate = buffer.bytes_per_second(read_loop(isa), pattern);
      if (rate > best.bytes_per_second) best = {rate, pattern, huge};
    }
  }
  return best;
}

/// Piece by piece, and from the front again. Which loop is the best depends on how busy the memory is: all
/// take turns. Pages are large ones, as the weights' are.
class CpuBandwidthProbe : public program::BandwidthProbe {
 public:
  explicit CpuBandwidthProbe(int threads) : team_(threads), buffer_(team_, read_bytes(), true) {}

  void read(int64_t bytes) override {
    const int64_t stretches =
        std::clamp<int64_t>(buffer_.bytes() / std::max<int64_t>(bytes, 1), 1, kStretches);
    Loop& loop = loops_[static_cast<size_t>(readings_ % std::ssize(loops_))];
    loop.ns_a_byte +=
        buffer_.ns_a_byte(read_loop(chosen_isa()), loop.pattern, readings_ % stretches, stretches);
    ++loop.readings;
    ++readings_;
  }
  double bytes_per_second() const override {
    double best = 0;
    for (const Loop& loop : loops_) {
      if (loop.readings > 0) best = std::max(best, 1e9 * static_cast<double>(loop.readings) / loop.ns_a_byte);
    }
    return best;
  }
  int64_t memory_bytes() const override { return buffer_.bytes(); }

 private:
  static constexpr int64_t kStretches = 1024;
  struct Loop {
    ReadPattern pattern;
    int64_t readings = 0;
    double ns_a_byte = 0;  // their sum
  };

  Team team_;
  ReadBuffer buffer_;
  std::vector<Loop> loops_ = [] {
    std::vector<Loop> loops;
    for (const ReadPattern pattern : kPatterns) loops.push_back({pattern});
    return loops;
  }();
  int64_t readings_ = 0;
};

Peaks measure(int threads, Isa isa) {
  Team team(threads);
  Peaks peaks;
  const ReadRate read = best_read(team, isa);
  best_reads()[threads] = read;
  peaks.bytes_per_second = read.bytes_per_second;
  peaks.read_how = fmt::format("{}, {} pages", kPatternNames[static_cast<size_t>(read.pattern)],
                               read.huge ? "2 MB" : "4 KB");
  for (const PeakUnit& unit : kUnits) {
    if (unit.isa > isa || (unit.there != nullptr && !unit.there())) continue;
    const double rate = unit_rate(team, unit);
    peaks.rates.push_back({unit.name, rate});
    if (unit.matrix) peaks.flops = std::max(peaks.flops, rate);
  }
  return peaks;
}

}  // namespace

const Peaks& machine_peaks(int threads) {
  static std::map<int, Peaks> known;
  const auto found = known.find(threads);
  return found != known.end() ? found->second : known[threads] = measure(threads, chosen_isa());
}

double measure_read_bandwidth(int threads) {
  machine_peaks(threads);
  const ReadRate& best = best_reads().at(threads);
  Team team(threads);
  ReadBuffer buffer(team, read_bytes(), best.huge);
  return buffer.bytes_per_second(read_loop(chosen_isa()), best.pattern);
}

std::unique_ptr<program::BandwidthProbe> make_bandwidth_probe(int threads) {
  return std::make_unique<CpuBandwidthProbe>(threads);
}

}  // namespace sluice::backend::cpu
