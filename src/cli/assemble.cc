#include "cli/assemble.h"

#include <sys/auxv.h>

#include <filesystem>
#include <system_error>

#include "backend/cpu/cpu_backend.h"
#include "backend/null/null_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"
#include "cli/cuda_library.h"
#include "cli/tuning_file.h"

namespace sluice::cli {

std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads,
                                               const program::Tuning& tuning) {
  if (name == "cpu") return backend::make_cpu_backend({.threads = threads, .tuning = tuning});
  if (name == "ref") return backend::make_ref_backend();
  if (name != "cuda" && name != "auto") {
    throw UsageError("--backend " + name + ": expected auto, cpu, cuda or ref");
  }
  std::string why;
  if (auto cuda = load_cuda_backend(why)) return cuda;
  if (name == "cuda") fail("--backend cuda: {}", why);
  return make_backend("cpu", threads, tuning);
}

std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads) {
  auto backend = make_backend(name, threads, {});
  const program::Tuning tuning = read_tuning(tuning_path(), backend->device());
  return tuning.empty() ? std::move(backend) : make_backend(name, threads, tuning);
}

std::unique_ptr<program::Backend> make_forecast_backend(const program::Peaks& peaks) {
  return backend::make_null_backend(peaks);
}

std::filesystem::path executable_folder() {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) {  // no /proc, as in a bare chroot: the name that the kernel was given
    // NOLINTNEXTLINE(performance-no-int-to-ptr): getauxval returns pointers as integers
    executable = fs::absolute(reinterpret_cast<const char*>(::getauxval(AT_EXECFN)), error);
  }
  return executable.parent_path();
}

std::string bundled_model_path() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = executable_folder();
  // Installed: PREFIX/bin beside PREFIX/share. Built: build/PRESET/bin below the source tree.
  const fs::path candidates[] = {folder / "../share/sluice/models/fairy-tales.gguf",
                                 folder / "../../../models/fairy-tales.gguf"};
  for (const fs::path& path : candidates) {
    if (fs::exists(path, error)) return path.lexically_normal().string();
  }
  fail("the bundled model is neither at {} nor at {}; name a model with -m",
       candidates[0].lexically_normal().string(), candidates[1].lexically_normal().string());
}

std::string model_path_or_bundled(const std::string& path) {
  return path.empty() ? bundled_model_path() : path;
}

}  // namespace sluice::cli
