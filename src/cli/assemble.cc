#include "cli/assemble.h"

#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/null/null_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "base/threads.h"
#include "cli/cuda_library.h"
#include "cli/hub_model.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/tuning_file.h"
#include "cli/vulkan_device.h"

namespace sluice::cli {

namespace {

/// The number of the device that a name names for a kind of backend: "cuda" is the first, "cuda:2" the third;
/// none in others.
std::optional<int> device_of(const std::string& name, const std::string& kind) {
  if (name == kind) return 0;
  const std::string prefix = kind + ":";
  if (!name.starts_with(prefix)) return {};
  int number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

OpenedModel open_model(const std::string& path, quant::Type cache) {
  const auto warned = [](OpenedModel opened) {
    if (const auto warning = model::vocabulary_warning(opened.file))
      note("sluice: {}\n", terminal_safe(*warning));
    return opened;
  };
  if (!PackFile::is_one(path)) return warned({model::Model::load(path, cache), nullptr});
  OpenedFile opened = open_file(path);
  return warned({model::Model::load(std::move(opened.file), cache), std::move(opened.packed)});
}

model::Model open_unpacked_model(const std::string& path, quant::Type cache) {
  if (PackFile::is_one(path))
    fail("{}: is packed for the backend cpu; this needs the GGUF file that it was made of", path);
  return model::Model::load(path, cache);
}

OpenedFile open_file(const std::string& path) {
  if (!PackFile::is_one(path)) return {nullptr, gguf::File::open(path)};
  auto packed = std::make_shared<const PackFile>(path);
  gguf::File file = gguf::File::parse(path, packed->original());
  return {std::move(packed), std::move(file)};
}

void verify_pack(const std::string& path, int threads) {
  const PackFile packed(path);
  Team team(threads_for(threads > 0 ? threads : usable_threads()));
  packed.verify(team);
}

int threads_for(int wanted) {
  const int usable = usable_threads();
  if (wanted <= usable) return wanted;
  static bool told = false;  // a command may make several backends
  if (!std::exchange(told, true))
    note("sluice: -t {}: this process runs {} at once; {} it is\n", wanted, usable, usable);
  return usable;
}

bool pack_model(const std::string& path, const std::string& out, int threads,
                const program::Progress& progress) {
  if (PackFile::is_one(path)) fail("{}: is packed already", path);
  const MappedFile mapped(path);
  gguf::File file = gguf::File::parse(path, mapped.bytes());
  if (file.integer("split.count").value_or(1) > 1)
    fail("{}: is a part of a split model; join the parts first", path);
  const model::Model model = model::Model::load(std::move(file));
  std::error_code error;
  if (std::filesystem::equivalent(path, out, error)) fail("{}: is the model itself", out);
  const std::byte* head_end = mapped.bytes().data() + mapped.bytes().size();
  for (const gguf::Tensor& tensor : model.file.tensors()) head_end = std::min(head_end, tensor.bytes.data());
  struct stat info {};
  ::stat(path.c_str(), &info);
  const backend::cpu::PackSource source{mapped.bytes(), head_end - mapped.bytes().data(),
                                        info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
  return backend::write_packed({.threads = threads_for(threads)}, model.program, model.weights, source, out,
                               progress);
}

std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads,
                                               const program::Tuning& tuning, const Loading& loading) {
  const auto cpu = [&] {
    return backend::make_cpu_backend(
        {.threads = threads, .repack = loading.repack, .tuning = tuning, .packed = loading.packed});
  };
  const bool for_cpu = !loading.repack || loading.packed != nullptr;
  if (!loading.repack && loading.packed) throw UsageError("--no-repack: the model is packed already");
  if (name == "cpu") return cpu();
  const std::optional<int> gpu = device_of(name, "cuda"), vulkan = device_of(name, "vulkan");
  if (for_cpu && (gpu || vulkan || name == "ref")) {
    throw UsageError(loading.packed
                         ? "--backend " + name + ": " + loading.packed->path() + " is packed for cpu"
                         : "--no-repack: needs --backend cpu");
  }
  if (name == "ref") return backend::make_ref_backend();
  if (!gpu && !vulkan && name != "auto")
    throw UsageError("--backend " + name + ": expected auto, cpu, cuda, cuda:N, vulkan, vulkan:N or ref");
  if (for_cpu) return cpu();
  std::string why;
  if (vulkan) {
    if (auto backend = make_vulkan(*vulkan, why)) return backend;
    fail("--backend {}: {}", name, why);
  }
  if (auto cuda = load_cuda_backend(gpu.value_or(0), why)) return cuda;
  if (gpu) fail("--backend {}: {}", name, why);
  return cpu();
}

void hold_to_sms(const std::string& name, int sms, const RankOptions& ranks) {
  if (sms == 0) return;
  if (ranks.several()) throw UsageError(std::string("--sms: is for one process; not with ") + ranks.flag());
  const std::optional<int> gpu = device_of(name, "cuda");
  if (!gpu) throw UsageError("--sms: needs --backend cuda");
  if (std::string why; !hold_cuda_to_sms(*gpu, sms, why)) fail("--sms {}: {}", sms, why);
}

std::unique_ptr<program::Backend> make_backend(const std::string& name, int wanted, const Loading& loading) {
  const int threads = threads_for(wanted);
  auto backend = make_backend(name, threads, program::Tuning{}, loading);
  const program::Tuning tuning = read_tuning(tuning_path(), backend->device());
  return tuning.empty() ? std::move(backend) : make_backend(name, threads, tuning, loading);
}

std::unique_ptr<program::Backend> make_cpu_beside_gpu(int wanted) {
  const int threads = threads_for(wanted);
  auto cpu = backend::make_cpu_backend({.threads = threads, .beside_device = true});
  const program::Tuning tuning = read_tuning(tuning_path(), cpu->device());
  if (tuning.empty()) return cpu;
  return backend::make_cpu_backend({.threads = threads, .tuning = tuning, .beside_device = true});
}

std::unique_ptr<program::Backend> make_backend(const std::string& name, int threads, const Loading& loading,
                                               const model::Model& model, const Fit& fit,
                                               const RankOptions& ranks) {
  if (ranks.several()) {
    if (fit.share.bytes > 0 && ranks.tensor_parallel > 1)
      throw UsageError(
          "--gpu-memory: not with --tensor-parallel, which cuts every expert; --pipeline-parallel leaves "
          "some "
          "to the CPU");
    return make_ranks_backend(ranks, name, threads, loading, model, fit);
  }
  auto backend = make_backend(name, threads, loading);
  if (backend->name() != "cuda") {
    if (fit.share.bytes > 0) throw UsageError("--gpu-memory: the backend is " + backend->name());
    return backend;
  }
  auto cpu = make_cpu_beside_gpu(threads);
  const Fitted fitted = fit_to(*backend, model, fit, cpu->available_bytes());
  if (fitted.mixtures == 0 && fit.share.bytes == 0) return backend;
  if (fitted.moved_bytes > cpu->available_bytes())
    fail("{}: {}, which has too little memory", model.file.path(), fitted.text());
  if (fitted.mixtures > 0) note("[ {} ]\n", fitted.text());
  return backend::make_offload_backend(std::move(backend), std::move(cpu), fitted.offload());
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
  return path.empty() ? bundled_model_path() : local_path(path);
}

}  // namespace sluice::cli
