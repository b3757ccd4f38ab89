// What the engine asks of a device, and what a device gets. Backends implement this and are strangers to each
// other.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_info.h"
#include "program/binding.h"
#include "program/executable.h"
#include "program/program.h"
#include "program/tolerance.h"
#include "program/weight_set.h"

namespace sluice::program {

struct CompileOptions {
  int64_t max_rows = 512;    ///< rows a step at most
  int64_t max_outputs = 1;   ///< logits rows a step at most
  int64_t cache_pages = 16;  ///< pages of kPageRows rows in every paged cache
  /// One order of every sum, whatever the number of rows of a step: a row's results then never depend on what
  /// else is in its step, nor on how a prompt was cut. Where kernels for many rows add up otherwise, they are
  /// left out.
  bool batch_invariant = false;
  /// Rows of a step that runs aside, while another one is paused; 0: no step pauses.
  int64_t aside_rows = 0;
  /// Positions of a sequence at most; 0: all that the cache holds.
  int64_t context = 0;
  /// What steps of serving need is made at once, and not when a step needs it for the first time. Such steps
  /// have at most max_outputs sequences.
  bool warm = false;
  /// Slots for states of sequences (StateSlots), where the program has any: two for each that is in a step at
  /// once, and one for each state that is to be kept besides.
  int64_t state_slots = 4;
  /// Whose caches it has, too: those of an executable of this backend with the same caches, which outlives
  /// it; null: its own. Of backends whose facts say that they stream.
  Executable* caches_of = nullptr;
  /// Of a program that begins with hidden states: the executable of this backend that leaves them
  /// (Executable::take_rows), which outlives it. Steps of both run one after the other. Null: none.
  Executable* beside = nullptr;
  /// Bytes a second that streamed weights come with at most, to measure what a slower link would give; 0: as
  /// fast as they can.
  double stream_bytes_per_second = 0;

  CacheRoom cache_room() const { return {cache_pages, state_slots}; }
};

/// Values for the choices that kernels leave open (a prefetch distance, rows a tile), by name. A backend is
/// made with what was measured best on its machine (`sluice tune`), and what it binds is a pure function of
/// the op, its types and shapes, and this. A name that is not here has its built-in value.
using Tuning = std::map<std::string, int64_t>;

/// A choice that a kernel leaves open, and what may be chosen. Results do not depend on it.
struct Variants {
  std::string key;
  int64_t builtin = 0;
  std::vector<int64_t> values;  ///< all that are worth measuring, the built-in one among them
};

/// What was chosen. A value that is not offered (the file may be anybody's) is not taken.
inline int64_t tuned(const Tuning& tuning, const Variants& variants) {
  const auto found = tuning.find(variants.key);
  if (found == tuning.end()) return variants.builtin;
  const bool offered =
      std::find(variants.values.begin(), variants.values.end(), found->second) != variants.values.end();
  return offered ? found->second : variants.builtin;
}

/// What a device reaches at best: the measure of every share. 0: not known, or it has no such unit.
struct Peaks {
  struct Rate {
    std::string name;       ///< "int8 VNNI"
    double per_second = 0;  ///< operations; a multiplication and an addition are two
  };
  double bytes_per_second = 0;  ///< reading memory that is in no cache
  std::string read_how;         ///< the loop that read fastest
  double flops = 0;             ///< of the quickest unit that multiplies matrices as kernels need it
  std::vector<Rate> rates;      ///< every unit's rate

  /// Seconds that the device needs at least: to read the bytes, or to compute, whichever takes longer; 0: its
  /// peaks are not known.
  double limit_seconds(const Cost& cost) const {
    if (bytes_per_second <= 0) return 0;
    return std::max(cost.bytes_read / bytes_per_second, flops > 0 ? cost.flops / flops : 0.0);
  }
};

/// Reads memory that is in no cache, a stretch at a time. On a shared machine bandwidth changes within
/// seconds: readings between steps meet what the steps meet.
class BandwidthProbe {
 public:
  virtual ~BandwidthProbe() = default;
  /// Reads about so many bytes more, each time with the next of several loops.
  virtual void read(int64_t bytes) = 0;
  /// Of all readings by the loop that was fastest; 0: there were none.
  virtual double bytes_per_second() const = 0;
  /// Physical memory that it holds for this.
  virtual int64_t memory_bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  /// For messages: what a backend can do, and what suits it, is told by facts().
  virtual std::string name() const = 0;
  virtual Facts facts() const { return {}; }
  /// What measured figures hold for: the device, how much of it is used, and the version of the kernels.
  /// "Intel Xeon Platinum 8488C, amx, 2 threads, kernels 1".
  virtual std::string device() const { return name(); }
  /// The choices that the kernel of this op leaves open: a pure function of its types and shapes.
  virtual std::vector<Variants> variants(const Program& /*program*/, const Op& /*op*/) const { return {}; }
  /// Whether there is a kernel for this op with these types.
  virtual bool has(const Program& program, const Op& op) const = 0;
  /// Whether steps of so many rows run this op by that kernel; otherwise its expansion runs.
  virtual bool has_for(const Program& program, const Op& op, int64_t /*rows*/) const {
    return has(program, op);
  }
  /// Bytes that load() and compile() may take at most, of the memory that they take them from.
  virtual int64_t available_bytes() const { return available_memory_bytes(); }
  /// What load() and compile() would take, without taking it. Sums that no int64 holds are the largest int64.
  virtual MemoryNeeds memory_needs(const Program& program, const CompileOptions& options) const = 0;
  /// What compile() would bind these ops to, and what it and load() would take. Throws Error where an op has
  /// no kernel.
  virtual Binding bind(const Source& source, const CompileOptions& options) const = 0;
  /// How far this backend's last result of these ops may lie from the reference's (program/tolerance.h).
  virtual double tolerance(const Program& program) const { return program::tolerance(program); }
  /// Loads what the ops of these programs of a model read, each weight once. Throws Error where memory is
  /// short.
  virtual std::shared_ptr<const WeightSet> load(std::span<const Source> /*sources*/,
                                                const Progress& /*progress*/) {
    return std::make_shared<MappedWeights>();
  }
  /// A program over weights that load() gave for it, and maybe for others.
  virtual std::unique_ptr<Executable> compile(const Source& source, std::shared_ptr<const WeightSet> weights,
                                              const CompileOptions& options) = 0;
  /// A program with weights of its own.
  std::unique_ptr<Executable> compile(const Program& program, const WeightBytes& weights,
                                      const CompileOptions& options, const Progress& progress = {}) {
    const Source source{program, weights};
    return compile(source, load({&source, 1}, progress), options);
  }
  /// What the device reaches at best, measured at the first call (some seconds) and remembered.
  virtual const Peaks& peaks() = 0;
  /// Bytes a second that reading memory reaches now, measured anew (a second): on shared machines it drifts.
  virtual double measure_read_bandwidth() = 0;
  /// Bytes a second from the host's memory to the device's, measured anew; 0: it has none of its own.
  virtual double measure_link_bandwidth() { return 0; }
  /// Of one over several devices their backends, by place; empty: it is one device.
  virtual std::vector<Backend*> places() const { return {}; }
  /// Null where nothing else reads the device's memory, so that its bandwidth stays what it was.
  virtual std::unique_ptr<BandwidthProbe> bandwidth_probe() { return nullptr; }
};

/// The ops that a backend runs in steps of so many rows: legalize of program/program.h by what it has for
/// them. Tensors keep their ids, new ones follow.
Program legalize(const Program& program, const Backend& backend, int64_t rows);

}  // namespace sluice::program
