// What a benchmark measures, and how it is printed: llama-bench's test names, field names and formats, with
// fields of ours behind them.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "profile/experts.h"
#include "quant/types.h"

namespace sluice::cli {

/// A prompt of `prompt` tokens, then `gen` tokens of each of `parallel` sequences, behind `depth` tokens.
struct BenchTest {
  int64_t prompt = 0, gen = 0, depth = 0;
  int32_t parallel = 1;
  quant::Type cache = quant::Type::F16;  ///< of the cache

  int64_t tokens() const { return prompt + gen * parallel; }
  /// "pp512", "tg128 @ d4096", "pp512+tg128", "tg128 x 8", "tg128 @ d4096 ctk q8_0".
  std::string name() const;
};

struct BenchModel {
  std::string path, type;
  int64_t size_bytes = 0, parameters = 0;
};

/// One row of results.
struct BenchRecord {
  BenchModel model;
  std::string backend, time;
  std::string device;  ///< what the figures hold for (program/backend.h)
  int threads = 0;
  int64_t n_batch = 0, n_ubatch = 0;
  BenchTest test;
  std::vector<double> samples_ns;
  double first_token_ns = 0;  ///< from the prompt's begin to its logits; 0: there was none
  double load_ns = 0;
  double exchange_ns = 0;         ///< of all samples: between ranks, waiting for others included
  int64_t peak_memory_bytes = 0;  ///< of the process while this ran
  program::Cost cost;             ///< of a repetition
  program::Peaks peaks;           ///< their read bandwidth measured between this test's steps or around it
  double limit_seconds = 0;       ///< a repetition takes at least by these; 0: not known
  double around_bytes_per_second = 0;  ///< the better reading of before and after
  profile::ExpertCount experts;        ///< counted when several sequences share steps

  std::vector<double> samples_ts() const;  ///< tokens a second of each repetition
  double seconds() const;                  ///< mean
  std::string marks() const;               ///< what the table has no columns for
};

/// Prints records as they come; end() closes what the format leaves open.
class BenchPrinter {
 public:
  virtual ~BenchPrinter() = default;
  virtual void begin() {}
  virtual void add(const BenchRecord& record) = 0;
  virtual void end() {}
};

/// format: md, csv, json, jsonl or sql. longest_test: characters of the longest test's name to come. Throws
/// UsageError for any other format.
std::unique_ptr<BenchPrinter> make_bench_printer(const std::string& flag, const std::string& format,
                                                 std::FILE* out, size_t longest_test);

}  // namespace sluice::cli
