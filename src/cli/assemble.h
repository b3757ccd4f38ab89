// The composition root: the one place that names concrete backends and the bundled model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "cli/fit.h"
#include "model/model.h"
#include "program/backend.h"

namespace sluice::backend::cpu {
class PackFile;
}

namespace sluice::cli {

using PackFile = backend::cpu::PackFile;

/// A model as its file gives it.
struct OpenedModel : model::Model {
  std::shared_ptr<const PackFile>
      packed;  ///< the file's bytes, of a file of `sluice pack`; null of a GGUF file
};

/// Opens a GGUF file or one of `sluice pack`. Throws Error that lists everything that is wrong with it.
OpenedModel open_model(const std::string& path, quant::Type cache = quant::Type::F16);

/// For commands that read the weights in the file's own order: throws Error for a packed file.
model::Model open_unpacked_model(const std::string& path, quant::Type cache = quant::Type::F16);

/// The GGUF file at a path, which may be packed: then it is whole but for the packed weights, which are
/// zeroes.
struct OpenedFile {
  std::shared_ptr<const PackFile> packed;  ///< null of a GGUF file
  gguf::File file;
};
OpenedFile open_file(const std::string& path);

/// How the backend cpu gets its weights into memory.
struct Loading {
  bool repack = true;                           ///< false: they stay in the mapped file
  std::shared_ptr<const PackFile> packed = {};  ///< they were packed before (open_model)
};

/// Packs a GGUF file's weights for the backend cpu. False: `out` is there already, made of the same file.
/// Throws Error that says what is wrong with one of the two.
bool pack_model(const std::string& path, const std::string& out, int threads,
                const program::Progress& progress);

/// Threads for -t: as many as are asked for, 0 for all, but no more than can run at once, which is told: with
/// more of them each step waits for those that do not run.
int threads_for(int wanted);

/// Reads all of a packed file and compares it with its checksums. Throws Error "PATH: is damaged ...".
void verify_pack(const std::string& path, int threads);

/// What people are told of --backend.
inline constexpr const char* kBackendHelp =
    "auto (cuda where a GPU is there, otherwise cpu), cpu, cuda (cuda:1: the second GPU), vulkan (vulkan:1: "
    "the second device) or ref";

/// "cpu", "cuda" (the first GPU), "cuda:N" (another one), "vulkan" and "vulkan:N" likewise, "ref", or "auto":
/// cuda where a GPU is there, otherwise cpu. threads (of cpu): see threads_for. With the values that `sluice
/// tune` kept for this machine. Throws Error why there is no such device, UsageError for any other name and
/// for a loading that the backend does not know.
std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads,
                                               const Loading& loading = {});
/// The same with these values, and as many threads as are asked for.
std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads,
                                               const program::Tuning& tuning, const Loading& loading = {});

/// The CPU for what a GPU has no room for, with the threads of -t.
std::unique_ptr<program::Backend> make_cpu_beside_gpu(int threads);

/// A model over several processes (cli/ranks.h).
struct RankOptions {
  int tensor_parallel = 1, pipeline_parallel = 1;
  std::string transport = "auto";

  bool several() const { return tensor_parallel > 1 || pipeline_parallel > 1; }
  /// Which of them was given, for messages.
  const char* flag() const { return pipeline_parallel > 1 ? "--pipeline-parallel" : "--tensor-parallel"; }
};

/// From now on the GPU that --backend names has so many SMs, or somewhat more: what a smaller one would do.
/// 0: all of them. Throws UsageError where it names none, Error where the driver cannot.
void hold_to_sms(const std::string& name, int sms, const RankOptions& ranks);

/// The same for a model, which may be larger than a GPU's memory (cli/fit.h), or run by several processes.
std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads, const Loading& loading,
                                               const model::Model& model, const Fit& fit,
                                               const RankOptions& ranks = {});

/// The backend that takes as long as hardware with these peaks needs at least.
std::unique_ptr<program::Backend> make_forecast_backend(const program::Peaks& peaks);

/// The folder of this program's file.
std::filesystem::path executable_folder();

/// Where the bundled model lies, found from the executable's own place: an installed tree's share folder or
/// the source tree's models folder. Throws Error that says where it looked.
std::string bundled_model_path();

/// The path that was given, or the bundled model's when it is empty; of a model of the hub (hf:USER/REPO)
/// that of its file, fetched if it is not there.
std::string model_path_or_bundled(const std::string& path);

}  // namespace sluice::cli
